-- Keep something that a protocol says of a session, as long as there is one. name: of the field, value: its text; keep: '1' gives
-- the session its time to live again.
-- → noted | missing
if redis.call('EXISTS', META) == 0 then
  return { 'missing' }
end
redis.call('HSET', META, 'note:' .. name, value)
if keep == '1' then
  local meta = redis.call('HMGET', META, 'hold', 'files')
  touch_session(lifetime(meta[1]), meta[2])
end
return { 'noted' }
