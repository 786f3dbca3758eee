#!lua flags=allow-oom
-- Start a session afresh: log, memory and history are dropped, the epoch grows. Or delete it.
-- ending_epoch: the epoch that is to end ('': any, and the session with it).
-- idempotency: a name for this clear, or ''.
-- A clear that the network delayed past another one finds a later epoch, or its own name there, and has nothing to do.
-- → cleared epoch | live task… (the newest first) | missing
local meta = redis.call('HMGET', META, 'epoch', 'cleared_by')
local delete = ending_epoch == ''
if not meta[1] then
  if delete then
    redis.call('DEL', META, LOG, MEMORY, HISTORY, WAITING, LIVE, FILES)
  end
  return { 'missing' }
elseif idempotency ~= '' and meta[2] == idempotency then
  return { 'cleared', meta[1] }
elseif not delete and not slow_paths().has_epoch(ending_epoch) then
  return { 'cleared', meta[1] }
end
local live = { 'live' }
for _, tid in ipairs(redis.call('ZRANGE', LIVE, 0, -1, 'REV')) do
  local status = redis.call('HGET', sibling(TASK, tid), 'status')
  if status and not TERMINAL[status] then
    live[#live + 1] = tid
  end
end
if #live > 1 then
  return live
end
redis.call('DEL', LOG, MEMORY, HISTORY, WAITING, LIVE, FILES)
redis.call('HDEL', META, 'files', 'log_lent', 'log_back', 'history_lent', 'history_back', 'memory_lent')
local epoch = next_epoch(tonumber(meta[1]))
redis.call('HSET', META, 'epoch', epoch, 'seq', '0', 'bytes', '0', 'head', '1', 'dropped', '0', 'kept', '0', 'forgotten', '0',
  'memory', '0', 'active', '', 'former', '', 'incarnation', slow_paths().with_incarnation(session()[3] or ''))
redis.call('HDEL', META, 'hold', 'cleared_by', 'base')
if idempotency ~= '' then
  redis.call('HSET', META, 'cleared_by', idempotency)
end
if delete then
  redis.call('DEL', META)
else
  touch_session(lifetime())
end
-- Followers of the former epoch learn that it is over.
redis.call(PUBLISH, TAIL, epoch .. '-1-0')
return { 'cleared', epoch }
