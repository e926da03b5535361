# The end of every job script. Given: what its begin has made; code, srun's exit status; settle, which runs
# mrt_hpc.backends.slurm.after_srun for this; AGAIN, OVER and DONE, its verdicts; GAVE_BACK, the exit code of a task that is
# to come back; MOST_AWAITED, the tasks that a dependency may name; MOST_LEFT_OUT, the nodes that a task may leave out;
# WAITED_FOR, whether another job starts only if this one ends well; LATE_S, see below.

trap "" TERM  # a requeue ends what is left of this attempt, and there is more to do
unset ${!SQUEUE_@} SLURM_TIME_FORMAT  # a user's own habits with squeue

# The time at which this attempt ends, for the reckoning of hours on clusters without accounting, and how srun has ended.
note_end() { note allocation_ended "\"code\": $code"; }

# A controller that does not answer is asked again.
patiently() { for pause in 5 10 20 40 0; do "$@" && return; sleep $pause; done; return 1; }
# A field of this task; lines that a wrapper of squeue adds are passed over.
field() { patiently squeue --noheader --jobs="$id" --format="mrt-hpc=$1" | sed -n 's/.*mrt-hpc=//p' | tail -n 1; }
# The lines of $1 that are whole lines of $2.
among() { printf '%s\n' "$1" | grep --fixed-strings --line-regexp --regexp="$2"; }

# Of those this task waits for, the ones in the queue: it starts when any of them does. Where none is left there it ends,
# since none would ever start; but a listing without this very task proves nothing.
look_for_awaited() {
  awaited=$(printf '%s\n' "$1" | grep --extended-regexp --line-regexp '[0-9]+(_[0-9]+)?') || return
  queue=$(patiently squeue --noheader --array --all --me --format=%i)
  left=$(among "$queue" "$awaited" | head -n $MOST_AWAITED)
  if [ -z "$left" ] && among "$queue" "$id" > /dev/null; then settle abandoned; verdict=$?; fi
}

# Only while Slurm calls it running: one that was cancelled, or that Slurm queues again by itself, is left alone. Where
# the cluster forbids it, asking again changes nothing.
requeue() {
  for pause in 5 10 20 40 0; do
    case $(field %T) in RUNNING | SIGNALING) ;; *) return 1 ;; esac
    note_end
    refusal=$(scontrol requeue "$id" 2>&1) && return
    printf '%s\n' "$refusal" >&2
    case $refusal in *"operation is presently disabled"*) settle forbidden; verdict=$?; return 1 ;; esac
    sleep $pause
  done
  echo "this task is not queued again; the same submit command continues the run" >&2
  return 1
}

# This node, where it is at fault, and those that this task leaves out already; nothing where they would be too many, or
# where sbatch says that no other node could run the task.
to_leave_out() {
  among "$1" node-fault > /dev/null || return
  out=$(field %x); out=${out#(null)}; out=${out:+$out,}$SLURMD_NODENAME
  names=$(scontrol show hostnames "$out") && [ "$(wc -l <<< "$names")" -le $MOST_LEFT_OUT ] || return
  if could=$(unset ${!SBATCH_@}; sbatch --test-only --dependency= --exclude="$out" "$0" 2>&1); then echo "$out"; return; fi
  printf 'the node is not left out: %s\n' "$could" >&2
}

queue_again() {
  out=$(to_leave_out "$said")
  requeue || return
  if [ -n "$out" ]; then scontrol update JobId="$id" ExcNodeList="$out"; fi
  if [ -n "$left" ]; then scontrol update JobId="$id" Dependency="after:${left//$'\n'/?after:}"; fi
}

# What becomes of this task. A filesystem that is away for a moment keeps settle from knowing: it is asked again, and in
# the end a task that only gave its nodes back, or was asked to leave, comes back.
judge() {
  for pause in 5 20 60 0; do
    said=$(settle); verdict=$?
    case $verdict in "$AGAIN" | "$OVER" | "$DONE") return ;; esac
    sleep $pause
  done
  case $verdict in 126 | 127) note script "\"stage\": \"python\", \"code\": $verdict" ;; esac
  said=
  case $code in "$GAVE_BACK" | 143) verdict=$AGAIN ;; *) verdict=$OVER ;; esac
}

# Slurm calls a job TIMEOUT that ends after its time was over, however well it ended, and cancels those that wait for it
# to end well. A preemption moves that time to the end of the grace, and may itself come seconds later. Queued again, the
# task finds its work done.
is_late() {
  end=$(field %e) && [ "$end" ] || return
  end=$(date --date="$end" +%s 2> /dev/null) && [ $((end - LATE_S)) -le "$(date +%s)" ]
}

if [ $code -ne 0 ]; then
  command -v srun > /dev/null || note script "\"stage\": \"srun\", \"code\": $code"
  left=
  judge
  if [ $verdict = $AGAIN ]; then look_for_awaited "$said"; fi
  if [ $verdict = $AGAIN ]; then queue_again; fi
  if [ $verdict = $DONE ]; then code=0; fi
fi
if [ $code -eq 0 ] && [ "$WAITED_FOR" ] && is_late; then requeue; fi
note_end
exit $code
