-- Take launches out of the queue. KEYS 1 queue  2 owners' tags   ARGV 1 how many at most
-- A claimed launch is in no queue any more: what it costs to claim does not depend on what runs.
-- → job ids, in the order to run them
local popped = redis.call('ZPOPMIN', KEYS[1], ARGV[1])
local jobs = {}
for index = 1, #popped, 2 do
  jobs[#jobs + 1] = popped[index]
end
if #jobs > 0 then
  if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('DEL', KEYS[2])
  else
    redis.call('HSET', KEYS[2], '', popped[#popped])
  end
end
return jobs
