-- Keep something that a protocol says of a session, as long as there is one. name: of the field, value: its text.
-- → noted | missing
if redis.call('EXISTS', META) == 0 then
  return { 'missing' }
end
redis.call('HSET', META, 'note:' .. name, value)
return { 'noted' }
