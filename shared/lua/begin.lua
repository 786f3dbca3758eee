#!lua flags=allow-oom
-- Take the attempt that runs a launch. launch: its number; worker: who takes it; memory_bytes: most bytes of memory;
-- room: most bytes of all that the turn is given.
-- The memory that comes back is the newest turns, as many as the agent's limit and the bytes allow.
-- → begun attempt snapshot memory | heavy bytes (nothing is taken) | superseded status | ended | gone

-- Bytes of what is told of a task's attempts: some twenty.
local MOST_TRIES = 2000

local task = redis.call('HMGET', TASK, 'status', 'launch', 'attempt', 'op', 'started', 'fresh', 'waits_for', 'worker', 'crashes',
  'parked', 'tries')
local status, attempt = task[1], task[3]
if not status or not session()[1] then
  return { 'gone' }
elseif TERMINAL[status] then
  return { 'ended' }
end
local repeated = status == 'running' and task[4] == OP
if not repeated and (status ~= 'queued' or task[2] ~= launch) then
  return { 'superseded', status }
end
local known = redis.call('HMGET', META, 'remember', 'memory', 'files')
local calls, state = redis.call('HGETALL', CALLS), redis.call('HGETALL', STATE)
if not repeated then
  -- The bytes of what the turn is given: request, memory, calls and checkpoints.
  local has_any = has_files(known[3])
  local bytes = redis.call('HSTRLEN', TASK, 'request')
    + (has_any and file_bytes(redis.call('HGET', TASK, 'request') or '') or 0)
  if known[1] ~= '0' then
    bytes = bytes + math.min(tonumber(known[2] or '0'), tonumber(memory_bytes))
  end
  for _, values in ipairs({ calls, state }) do
    for _, value in ipairs(values) do
      bytes = bytes + #value + (has_any and file_bytes(value) or 0)
    end
  end
  if bytes > tonumber(room) then
    return { 'heavy', int(bytes) }
  end
  attempt = int(tonumber(attempt) + 1)
  redis.call('HSET', TASK, 'status', 'running', 'attempt', attempt, 'ran', attempt, 'lease', int(NOW + LEASE),
    'worker', worker, 'op', OP, 'holder', OP, 'out', '', 'started', task[5] or int(NOW))
  if task[7] then
    redis.call('HDEL', TASK, 'not_before', 'waits_for')
  end
  if attempt ~= '1' then
    -- For operators, a line for each attempt: its number, when it began, how many were lost before it, when the turn was parked
    -- last, what it was released for, and its worker. One that is the only one is told by the other fields.
    local tries = task[11] or table.concat({ '1', task[5] or '0', '0', '0', '-', task[8] or '-' }, ' ')
    if #tries > MOST_TRIES then
      tries = string.sub(tries, string.find(tries, '\n', #tries - MOST_TRIES, true) + 1)
    end
    local line = table.concat({ attempt, int(NOW), task[9] or '0', task[10] or '0', task[7] or '-', worker }, ' ')
    redis.call('HSET', TASK, 'tries', tries .. '\n' .. line)
  end
  touch(task[6])
end
local turns = tonumber(known[1] or '1000')
if not known[2] or tonumber(known[2]) > tonumber(memory_bytes) then
  turns = newest(turns, tonumber(memory_bytes))
end
local memory = turns > 0 and redis.call('LRANGE', MEMORY, int(-turns), -1) or {}
return { 'begun', attempt, snapshot(known[3], calls, state, memory), memory }
