-- Make a session that begins with what was said in another one. Keys: staged_history, staged_memory: what graft.lua took.
-- agent, user: whose it is; origin: what it is a fork of; epoch: of the history's ids; seq: where its log goes on behind;
-- entries, elements: how many wait; kept, memory_bytes: their bytes, with those of files, which are history_lent and memory_lent;
-- life_ms: how long it lives unless a turn comes; references: of each file that the memory refers to its digest, and how often.
-- → forked | exists origin | lost (not all of it waits any more) | files_missing
local known = redis.call('HMGET', META, 'epoch', 'origin')
if known[1] then
  return { 'exists', known[2] or '' }
elseif redis.call('XLEN', staged_history) ~= tonumber(entries) or redis.call('LLEN', staged_memory) ~= tonumber(elements) then
  return { 'lost' }
elseif files_missing() then
  return { 'files_missing' }
end
make(agent, user)
-- No turn was answered from here: what stands behind it comes from the history, as what was trimmed does.
redis.call('HSET', META, 'epoch', epoch, 'seq', seq, 'head', int(tonumber(seq) + 1), 'kept', kept, 'memory', memory_bytes, 'origin', origin)
if tonumber(history_lent) > 0 then
  redis.call('HSET', META, 'log_lent', '0', 'history_lent', history_lent)
end
if tonumber(memory_lent) > 0 then
  redis.call('HSET', META, 'memory_lent', memory_lent)
end
if tonumber(entries) > 0 then
  redis.call('RENAME', staged_history, HISTORY)
end
if tonumber(elements) > 0 then
  redis.call('RENAME', staged_memory, MEMORY)
end
if FILE_COUNT > 0 then
  slow_paths().store_files(tonumber(seq))
  for index = references_at, #ARGV, 2 do
    redis.call('HSET', FILES, ARGV[index] .. ':memory', ARGV[index + 1])
  end
end
for _, key in ipairs({ META, HISTORY, MEMORY, FILES }) do
  redis.call('PEXPIRE', key, life_ms)
end
return { 'forked' }
