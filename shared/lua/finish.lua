#!lua flags=allow-oom
-- Write the end of a task.
-- attempt, holder, seen_epoch, seen_seq, seen_op: what the writer shows (see refusal); ended: the status; why: code,
-- may be empty; told: the beginning of the error's text, may be empty; usage: JSON; model_calls: JSON, may be empty; memory_element: may be empty; memory_bytes: most bytes of memory; entries: the last one is terminal.
-- → ok seq next launch (next: the session's next task, to be launched, or '')
--   | behind launch | fenced | ended | gone | files_missing

-- Count that one more element of the memory refers to its files, or one less.
-- → the bytes that the element counts for
local function refer(element, by)
  local of_files = 0
  for _, digest in ipairs(references(element)) do
    redis.call('HINCRBY', FILES, digest .. ':memory', by)
    of_files = of_files + redis.call('HSTRLEN', FILES, digest)
  end
  if of_files > 0 then
    redis.call('HINCRBY', META, 'memory_lent', int(by * of_files))
  end
  return #element + of_files
end

-- Remember a turn, and forget the oldest ones while there are too many of them, or of their bytes. These are counted
-- as they come and go: `bytes`, as the meta has them. A turn that alone has too many is not remembered.
-- → the bytes that the memory has now
local function remember(element, most, limit, bytes, hold)
  local length = redis.call('RPUSH', MEMORY, element)
  if length == 1 then
    redis.call('PEXPIRE', MEMORY, lifetime(hold))
  end
  local costs = refer(element, 1)
  if bytes then
    bytes = tonumber(bytes) + costs
  else
    -- What an earlier release kept was not counted.
    local count
    count, bytes = newest(most, limit)
    redis.call('LTRIM', MEMORY, int(length - count), -1)
    length = count
  end
  while length > 0 and (length > most or bytes > limit) do
    bytes = bytes - refer(redis.call('LPOP', MEMORY), -1)
    length = length - 1
  end
  return length > 0 and int(bytes) or '0'
end

local task = redis.call('HMGET', TASK, 'status', 'attempt', 'op', 'holder', 'launch', 'ending', 'out', 'number', 'next', 'fresh')
if task[3] == OP and task[2] == attempt then
  return { 'ok', task[7], task[9] or '', '1' }
end
session(true)
local no = refusal(task, attempt, holder, seen_epoch, seen_seq, seen_op)
if no then
  return no
end
local _, seq, number = write(entries_at, task[8])
local meta = redis.call('HMGET', META, 'active', 'asked', 'remember', 'memory', 'hold', 'files')
local set = { 'asked', int((tonumber(meta[2]) or 0) - redis.call('HSTRLEN', TASK, 'request')) }
if memory_element ~= '' then
  set[3] = 'memory'
  set[4] = remember(memory_element, tonumber(meta[3] or '1000'), tonumber(memory_bytes), meta[4], meta[5])
end
redis.call('ZREM', LIVE, TID)
redis.call('DEL', CALLS, STATE)
redis.call('HDEL', TASK, 'lease', 'request')
for _, field in ipairs(redis.call('HKEYS', TASK)) do
  if string.sub(field, 1, 5) == 'open:' or string.sub(field, 1, 6) == 'group:' then
    redis.call('HDEL', TASK, field)
  end
end
-- What this task alone still needed can go.
trim()
if has_files(meta[6]) then
  drop_unused_files()
end

local following = ''
if meta[1] == TID then
  repeat
    following = redis.call('LPOP', WAITING) or ''
  until following == '' or redis.call('HGET', sibling(TASK, following), 'status') == 'queued'
  set[#set + 1] = 'active'
  set[#set + 1] = following
  if following ~= '' then
    redis.call('HSET', sibling(TASK, following), 'launch', '1', 'launched', int(NOW))
  end
end
redis.call('HSET', META, unpack(set))
redis.call('HSET', TASK, 'status', ended, 'why', why, 'ended', int(NOW), 'op', OP, 'out', int(seq),
  'next', following, 'number', number, 'usage', usage)
if told ~= '' then
  redis.call('HSET', TASK, 'error', told)
end
if model_calls ~= '' then
  redis.call('HSET', TASK, 'model_calls', model_calls)
end
local released = meta[5] and redis.call('EXISTS', LIVE) == 0
if released then
  -- The session waits for no client any more: it lives as long as any other.
  redis.call('HDEL', META, 'hold')
end
touch(task[10], released)
return { 'ok', int(seq), following, '1' }
