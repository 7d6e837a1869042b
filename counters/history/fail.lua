-- Note why a history could not be refreshed, if the claim is still held. Its data stay.
-- KEYS[1] history, KEYS[2] claim. ARGV: token of the claim, the problem.
-- Returns 1, or 0 if the claim is lost and nothing was written.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', time[2])
if redis.call('HGET', KEYS[1], 'problem') ~= ARGV[2] then
  redis.call('HSET', KEYS[1], 'version', now)
end
redis.call('HSET', KEYS[1], 'tried', now, 'problem', ARGV[2])
return 1
