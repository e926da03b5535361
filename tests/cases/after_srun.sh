# What stands between the prologue and the epilogue of the job script; a name in braces is a value of the test.
(exit {code}); code=$?; AGAIN=0; OVER=4; DONE=3; GAVE_BACK=75; MOST_AWAITED=2; WAITED_FOR={waited_for}; LATE_S=5
SLURM_JOB_ID=7; id=7
export SLURM_TIME_FORMAT=%s SQUEUE_FORMAT=%j
end() {{ case ${{SLURM_TIME_FORMAT-}}$1 in %s????-*) date --date="$1" +%s;; *) echo "$1";; esac; }}
settle() {{ echo "settle $*" >&2; if [ "$*" ]; then return 4; fi; printf '%s' '{said}'; return {verdict}; }}
sleep() {{ :; }}
answers() {{ echo Welcome; echo; echo "mrt-hpc=$1"; }}
squeue() {{
  case "$*" in
    *%T*) answers {state};; *%e*) answers "$(end {end})";; *) echo Welcome; printf '%s' '{queue}'; return {listed};;
  esac
}}
exec 3>&2
scontrol() {{ echo "scontrol $*" >&3; {refusal}; }}
