-- Replace a history whole, if the claim is still held.
-- KEYS[1] history, KEYS[2] claim. ARGV: token of the claim, data, seconds until the next refresh.
-- Returns 1, or 0 if the claim is lost and nothing was written.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', time[2])
redis.call('HSET', KEYS[1], 'data', ARGV[2], 'every', ARGV[3], 'refreshed', now, 'tried', now, 'version', now)
redis.call('HDEL', KEYS[1], 'problem')
return 1
