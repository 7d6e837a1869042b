-- Write one sample of every count, unless one was written a moment ago.
-- KEYS[1] claim, KEYS[2] names of the counters sampled, KEYS[3..] one series per counter.
-- ARGV: milliseconds until the next sample may be written, then name and value of each counter.
-- Returns 1, or 0 if another sample is too near.
if not redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1]) then
  return 0
end
local now = redis.call('TIME')[1]
for i = 3, #KEYS do
  local name, value = ARGV[2 * i - 4], ARGV[2 * i - 3]
  -- A foreign key in one place costs that counter alone.
  local added = redis.pcall('ZADD', KEYS[i], now, now .. ':' .. value)
  if type(added) == 'number' then
    redis.call('SADD', KEYS[2], name)
  end
end
return 1
