-- Forget how far the topics ARGV[first..] were read, and how many of their records were counted.
local function forget(offsets, first)
  for t = first, #ARGV do
    local topic = ARGV[t]
    for _, field in ipairs(redis.call('HKEYS', offsets)) do
      if field == topic or string.sub(field, 1, #topic + 1) == topic .. ':' then
        redis.call('HDEL', offsets, field)
      end
    end
  end
end
