# The end of every job script. Given: code, srun's exit status; settle, which runs mrt_hpc.launch.settle for this task;
# AGAIN and DONE, verdicts of it; MOST_AWAITED, the tasks that a dependency may name.

trap "" TERM  # a requeue ends what is left of this attempt, and there is more to do
unset ${!SQUEUE_@}  # a user's own habits with squeue

id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}; id=${id:-$SLURM_JOB_ID}

# A controller that does not answer is asked again.
patiently() { for pause in 5 10 20 40 0; do "$@" && return; sleep $pause; done; return 1; }
# The lines of $1 that are whole lines of $2.
among() { printf '%s\n' "$1" | grep --fixed-strings --line-regexp --regexp="$2"; }

# Of those this task waits for, the ones in the queue: it starts when any of them does. Where none is left there it ends,
# as nobody would ever come; but a listing without this very task proves nothing.
look_for_awaited() {
  awaited=$(printf '%s\n' "$1" | grep --extended-regexp --line-regexp '[0-9]+(_[0-9]+)?') || return
  queue=$(patiently squeue --noheader --array --all --me --format=%i)
  left=$(among "$queue" "$awaited" | head -n $MOST_AWAITED)
  if [ -z "$left" ] && among "$queue" "$id" > /dev/null; then settle abandoned; verdict=$?; fi
}

# Only while Slurm calls it running: one that was cancelled, or that Slurm queues again by itself, is left alone.
requeue() {
  for pause in 5 10 20 40 0; do
    [ "$(patiently squeue --noheader --jobs="$id" --format=%T)" = RUNNING ] || return
    scontrol requeue "$id" && return
    sleep $pause
  done
  return 1
}

queue_again() {
  requeue || return
  if [ -n "$left" ]; then scontrol update JobId="$id" Dependency="after:${left//$'\n'/?after:}"; fi
}

if [ $code -ne 0 ]; then
  said=$(settle); verdict=$?; left=
  if [ $verdict = $AGAIN ]; then look_for_awaited "$said"; fi
  if [ $verdict = $AGAIN ]; then queue_again; fi
  if [ $verdict = $DONE ]; then code=0; fi
fi
exit $code
