-- Receipts that are to count as new. KEYS[1] receipts. ARGV: ids. Returns how many of them have one.
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', time[2])
local kept = 0
for _, id in ipairs(ARGV) do
  if redis.call('ZSCORE', KEYS[1], id) then
    redis.call('ZADD', KEYS[1], 'XX', now, id)
    kept = kept + 1
  end
end
return kept
