#!lua flags=allow-oom
-- Take the attempt that runs a launch. ARGV 7 launch  8 worker  9 most bytes of memory
-- The memory that comes back is the newest turns, as many as the agent's limit and the bytes allow.
-- → begun attempt snapshot memory | superseded status | ended | gone
local task = redis.call('HMGET', TASK, 'status', 'launch', 'attempt', 'op')
local status, attempt = task[1], task[3]
if not status then
  return { 'gone' }
elseif TERMINAL[status] then
  return { 'ended' }
elseif not (status == 'running' and task[4] == OP) then
  if status ~= 'queued' or task[2] ~= ARGV[7] then
    return { 'superseded', status }
  end
  attempt = int(tonumber(attempt) + 1)
  redis.call('HSET', TASK, 'status', 'running', 'attempt', attempt, 'ran', attempt, 'lease', int(NOW + LEASE),
    'worker', ARGV[8], 'op', OP, 'holder', OP, 'out', '')
  redis.call('HSETNX', TASK, 'started', int(NOW))
  touch(false)
end
local known = redis.call('HMGET', META, 'remember', 'memory')
local turns = tonumber(known[1] or '1000')
if not known[2] or tonumber(known[2]) > tonumber(ARGV[9]) then
  turns = newest(turns, tonumber(ARGV[9]))
end
return { 'begun', attempt, snapshot(), turns > 0 and redis.call('LRANGE', MEMORY, int(-turns), -1) or {} }
