-- A receipt is a member of one sorted set: the id of something that was done, once and for all, with the server's
-- time in microseconds. Prepended to scripts whose effect must not happen twice, which first ask for those missing,
-- and then write one with each effect.
local receipts = {}

-- Those of `ids` that have none, each once, in their order. Fails before any effect if the key holds something else.
function receipts.missing(key, ids)
  local missing, seen = {}, {}
  for _, id in ipairs(ids) do
    if not seen[id] and not redis.call('ZSCORE', key, id) then
      missing[#missing + 1] = id
    end
    seen[id] = true
  end
  return missing
end

-- The receipt of `id`, from now.
function receipts.write(key, id)
  local time = redis.call('TIME')
  redis.call('ZADD', key, time[1] .. string.format('%06d', time[2]), id)
end
