#!lua flags=allow-oom
-- Write the end of a task. ARGV 7 to 10 what the writer shows  11 status  12 why (code, may be empty)
--      13 memory (may be empty)  14 most bytes of memory  15… entries, the last one terminal
-- → ok seq next launch (next: the session's next task, to be launched, or '')
--   | behind launch | fenced | ended | gone

-- Remember a turn, and forget the oldest ones while there are too many of them, or of their bytes. These are counted
-- as they come and go. A turn that alone has too many is not remembered.
local function remember(element, most, limit)
  redis.call('RPUSH', MEMORY, element)
  local bytes = redis.call('HGET', META, 'memory')
  if bytes then
    bytes = tonumber(bytes) + #element
  else
    local count
    count, bytes = newest(most, limit)
    -- What an earlier release kept was not counted.
    redis.call('LTRIM', MEMORY, int(redis.call('LLEN', MEMORY) - count), -1)
  end
  local length = redis.call('LLEN', MEMORY)
  while length > 0 and (length > most or bytes > limit) do
    bytes = bytes - #redis.call('LPOP', MEMORY)
    length = length - 1
  end
  redis.call('HSET', META, 'memory', length > 0 and int(bytes) or '0')
end

local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'holder', 'launch', 'ending', 'out', 'number', 'next')
if task[3] == OP and task[2] == ARGV[7] then
  return { 'ok', task[7], task[9], '1' }
end
local no = refusal(task)
if no then
  return no
end
local _, seq, number = write(15, task[8])
if ARGV[13] ~= '' then
  remember(ARGV[13], tonumber(redis.call('HGET', META, 'remember') or '1000'), tonumber(ARGV[14]))
end
redis.call('ZREM', LIVE, TID)
redis.call('HINCRBY', META, 'asked', -redis.call('HSTRLEN', TASK, 'request'))
redis.call('DEL', CALLS, STATE)
redis.call('HDEL', TASK, 'lease', 'request')
for _, field in ipairs(redis.call('HKEYS', TASK)) do
  if string.sub(field, 1, 5) == 'open:' or string.sub(field, 1, 6) == 'group:' then
    redis.call('HDEL', TASK, field)
  end
end
-- What this task alone still needed can go.
trim()

local following = ''
if redis.call('HGET', META, 'active') == TID then
  repeat
    following = redis.call('LPOP', WAITING) or ''
  until following == '' or redis.call('HGET', sibling(TASK, following), 'status') == 'queued'
  redis.call('HSET', META, 'active', following)
  if following ~= '' then
    redis.call('HSET', sibling(TASK, following), 'launch', '1', 'launched', int(NOW))
  end
end
redis.call('HSET', TASK, 'status', ARGV[11], 'why', ARGV[12], 'ended', int(NOW), 'op', OP, 'out', int(seq),
  'next', following, 'number', number)
touch(true)
return { 'ok', int(seq), following, '1' }
