-- What sites do to jobs: the comment is theirs, no job is started again, and no limit is longer than theirs.
local longest_minutes = ${longest_minutes}

local function by_the_rules(job)
   job.comment = "site: checked"
   job.requeue = 0
   if job.time_limit ~= slurm.NO_VAL and job.time_limit > longest_minutes then
      slurm.log_user("the time limit is " .. longest_minutes .. " minutes here")
      job.time_limit = longest_minutes
   end
end

function slurm_job_submit(job, partitions, user)
   slurm.log_user("welcome to ${cluster}: Submitted batch job 12 of today")
   by_the_rules(job)
   return slurm.SUCCESS
end

function slurm_job_modify(change, job, partitions, user)
   return slurm.SUCCESS
end
