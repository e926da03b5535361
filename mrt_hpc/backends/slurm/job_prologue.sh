# The begin of every job script, before the setup lines of the site profile. Given: JOB and EVENTS, the job's name in the
# plan and the folder of the run's events. It makes: id, the task as Slurm names it; note, which says in a line of these
# events which stage this script has reached, so that an attempt has a reason whose Python never began.

id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}; id=${id:-$SLURM_JOB_ID}

# An event of the kind $1 with the further fields $2. Where the disk is full, or this node does not see the run, it is
# left out, and the job goes on.
note() {
  attempt=$id.${SLURM_RESTART_COUNT:-0}; index=$(printf %05d "${SLURM_ARRAY_TASK_ID:-0}")
  (umask 027; printf '{"time": %s, "kind": "%s", "attempt": "%s", "job": "%s", "task": %d, "host": "%s", "pid": %s%s}\n' \
    "$(date +%s)" "$1" "$attempt" "$JOB" "${SLURM_ARRAY_TASK_ID:-0}" "$(hostname)" $$ "${2:+, $2}" \
    >> "$EVENTS/$JOB.$index.script.$attempt.jsonl") 2> /dev/null
}

# The job goes on after a setup line that fails, as many do that only lack something: what it lacks may fail later.
note_setup_failure() {
  [ ${#BASH_SOURCE[@]} -le 2 ] || return 0  # of a file that a line reads, only how the line itself ends
  line=${2//[[:cntrl:]]/ }; line=${line:0:200}; line=${line//\\/\\\\}; line=${line//\"/\\\"}
  note script "\"stage\": \"setup\", \"code\": $1, \"line\": \"$line\""
  echo "a setup line of the site profile ended with exit code $1: $2" >&2
}

note script '"stage": "began"'
trap 'note_setup_failure $? "$BASH_COMMAND"' ERR
