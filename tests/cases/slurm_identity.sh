#!/bin/sh
# A listing that is up to {seconds} s old: what is newer is not in it.
listed={folder}/newest
if [ ! -e $listed ] || [ $(($(date +%s) - $(stat -c %Y $listed))) -ge {seconds} ]; then
  (echo 0; {squeue} --noheader --all --format=%A) | sort -n | tail -n 1 > $listed
fi
{squeue} "$@" | awk -v newest=$(cat $listed) -F '[|_]' '$2 !~ /^[0-9]+$/ || $2 <= newest'
