#!lua flags=no-writes
-- Read a session's log or history from a place on, no more at once than is good for the broker and the reader.
-- KEYS 1 meta  2 log or history
-- ARGV 1 the place, an id  2 id of the last entry that is wanted  3 most bytes
-- → epoch seq written entries former | nothing, when there is no such session
--   written: when the entry at the place was written, '' if none stands there; entries: those behind the place;
--   former: see _session.lua
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'seq', 'former')
if not meta[1] then
  return {}
end
local most = tonumber(ARGV[3])
-- What an entry costs a reader beside its texts, about.
local ENTRY_BYTES = 512
local entries, written, size = {}, '', 0
local from, count, more = ARGV[1], 5, true
while more do
  local rows = redis.call('XRANGE', KEYS[2], from, ARGV[2], 'COUNT', count)
  more = #rows == count
  for _, row in ipairs(rows) do
    local fields = row[2]
    if row[1] == ARGV[1] then
      written = fields[8]
    else
      local bytes = ENTRY_BYTES
      for index = 2, #fields, 2 do
        bytes = bytes + #fields[index]
      end
      -- One is given however large it is.
      if size > 0 and size + bytes > most then
        more = false
        break
      end
      size = size + bytes
      entries[#entries + 1] = row
    end
  end
  if more then
    from = '(' .. rows[#rows][1]
    count = 4
    if size > 0 then
      -- As many as should fit, by those that came.
      count = math.max(1, math.min(500, math.floor((most - size) * #entries / size)))
    end
  end
end
return { meta[1], meta[2], written, entries, meta[3] or '' }
