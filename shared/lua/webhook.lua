-- Keep, replace or drop what a task is to tell of itself: `hook:<id>`, whom, and `told:<id>`, what of that came of it; `hooks`
-- names them. id: of the webhook; field: hook or told; value: '': drop it, and what came of it; most: how many at most.
-- → kept | full | missing (there is no such task, or of `told`, no such webhook)
if redis.call('HEXISTS', TASK, 'status') == 0 then
  return { 'missing' }
end
local known = redis.call('HEXISTS', TASK, 'hook:' .. id) == 1
if field == 'told' then
  if known then
    redis.call('HSET', TASK, 'told:' .. id, value)
  end
  return { known and 'kept' or 'missing' }
end
local others, count = {}, 0
for each in string.gmatch(redis.call('HGET', TASK, 'hooks') or '', '%S+') do
  if each ~= id then
    count = count + 1
    others[count] = each
  end
end
if value == '' then
  redis.call('HDEL', TASK, 'hook:' .. id, 'told:' .. id)
elseif count >= tonumber(most) then
  return { 'full' }
else
  others[count + 1] = id
  redis.call('HSET', TASK, 'hook:' .. id, value)
  if not known then
    redis.call('HDEL', TASK, 'told:' .. id)
  end
end
redis.call('HSET', TASK, 'hooks', table.concat(others, ' '))
return { 'kept' }
