#!lua flags=allow-oom
-- Start a session afresh: log, memory and history are dropped, the epoch grows. ARGV 7 the epoch that is to end
-- A clear that the network delayed past another one finds a later epoch, and has nothing to do.
-- → cleared epoch | live task… | missing
local meta = redis.call('HMGET', META, 'epoch')
if not meta[1] then
  return { 'missing' }
elseif meta[1] ~= ARGV[7] and not last_of(ARGV[7]) then
  return { 'cleared', meta[1] }
end
local live = { 'live' }
for _, field in ipairs(redis.call('HKEYS', META)) do
  if string.sub(field, 1, 5) == 'live:' then
    local tid = string.sub(field, 6)
    local status = redis.call('HGET', sibling(TASK, tid), 'status')
    if status and not TERMINAL[status] then
      live[#live + 1] = tid
    else
      redis.call('HDEL', META, field)
    end
  end
end
if #live > 1 then
  return live
end
redis.call('DEL', LOG, MEMORY, HISTORY, WAITING)
local epoch = int(math.max(tonumber(meta[1]) + 1, NOW))
redis.call('HSET', META, 'epoch', epoch, 'seq', '0', 'bytes', '0', 'head', '1', 'trim_at', '0', 'kept', '0', 'memory', '0',
  'active', '', 'former', '', 'incarnation', INCARNATION)
touch(true)
-- Followers of the former epoch learn that it is over.
redis.call('PUBLISH', TAIL, epoch .. '-1-0')
return { 'cleared', epoch }
