#!lua flags=allow-oom
-- Take the attempt that runs a launch. ARGV 7 launch  8 worker  9 most bytes of memory
--      10 most bytes of all that the turn is given
-- The memory that comes back is the newest turns, as many as the agent's limit and the bytes allow.
-- → begun attempt snapshot memory | heavy bytes (nothing is taken) | superseded status | ended | gone

-- The bytes of what a turn is given: request, memory, calls and checkpoints.
local function weight()
  local known = redis.call('HMGET', META, 'remember', 'memory')
  local bytes = redis.call('HSTRLEN', TASK, 'request')
  if known[1] ~= '0' then
    bytes = bytes + math.min(tonumber(known[2] or '0'), tonumber(ARGV[9]))
  end
  for _, key in ipairs({ CALLS, STATE }) do
    for _, value in ipairs(redis.call('HGETALL', key)) do
      bytes = bytes + #value
    end
  end
  return bytes
end

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
  local bytes = weight()
  if bytes > tonumber(ARGV[10]) then
    return { 'heavy', int(bytes) }
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
