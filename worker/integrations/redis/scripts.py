"""Lua scripts of the Redis broker: each is one atomic step on streams and the keys beside them.

Streams of a model or an owner are the named ones here. Their entries are announced by an entry in the stream `wake`,
since idle workers block on that one and on the common streams alone. A named stream goes with its last entry. `waiting`
has each stream with jobs that nobody has taken, by its priority and the time of the oldest; `given-back` those with
jobs that a worker has given back.
"""

from __future__ import annotations

from typing import Final

PRIORITY_SPAN: Final = 10**14
"""Milliseconds of an entry are fewer: those of the year 5138."""

ORDER: Final = f"""
local ranks = {{high = 0, normal = 1, low = 2}}

local function order_of(suffix, entry)
  local rank = ranks[string.match(suffix, '^jobs:([a-z]+)')] or 1
  return rank * {PRIORITY_SPAN} + tonumber(string.match(entry, '%d+'))
end
"""
"""The place of a stream in `waiting`, by the entry that nobody has taken."""

PUT: Final = f"""{ORDER}
if not redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[4]) then return 0 end
if ARGV[7] == '1' and redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[8], '0', 'MKSTREAM')
  redis.call('SADD', KEYS[3], ARGV[6])
end
local entry = redis.call('XADD', KEYS[1], '*', 'id', ARGV[1], 'body', ARGV[2], 'owner', ARGV[3], 'asked', ARGV[5])
if ARGV[7] == '1' then
  redis.call('ZADD', KEYS[4], 'NX', order_of(ARGV[6], entry), ARGV[6])
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', '1000', '*', 'stream', ARGV[6])
end
return 1
"""
"""Add a job unless its id is known. Keys: stream, marker of the id, names of named streams, `waiting`, `wake`.
Arguments: id, body, owner, marker's seconds, the caller's id, the stream's name, '1' for a named one, group."""

WAITING: Final = f"""
local most, num_each = tonumber(ARGV[1]), tonumber(ARGV[2])
if redis.call('ZCARD', KEYS[1]) <= most then return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES') end
local is_wanted = {{}}
for i = 3, #ARGV do is_wanted[ARGV[i]] = true end

local function chosen_of(rank)
  local from = string.format('%.0f', rank * {PRIORITY_SPAN})
  local before = string.format('(%.0f', (rank + 1) * {PRIORITY_SPAN})
  local all = redis.call('ZRANGEBYSCORE', KEYS[1], from, before, 'WITHSCORES')
  local owners, by_name = {{}}, {{}}
  for i = 1, #all, 2 do
    local name = string.match(all[i], '^jobs:[a-z]+:owner:([^:]+)') or ''
    local owner = by_name[name]
    if not owner then
      owner = {{place = i, turn = tonumber(redis.call('ZSCORE', KEYS[2], name) or 0), streams = {{}}, num = 0}}
      by_name[name] = owner
      owners[#owners + 1] = owner
    end
    if owner.num < num_each or is_wanted[string.match(all[i], ':model:(.+)$')] then
      owner.num = owner.num + 1
      owner.streams[#owner.streams + 1] = all[i]
      owner.streams[#owner.streams + 1] = all[i + 1]
    end
  end
  table.sort(owners, function(a, b)
    if a.turn ~= b.turn then return a.turn < b.turn end
    return a.place < b.place
  end)
  return owners
end

local found = {{}}
for rank = 0, 2 do
  for _, owner in ipairs(chosen_of(rank)) do
    for _, word in ipairs(owner.streams) do found[#found + 1] = word end
    if #found >= 2 * most then return found end
  end
end
return found
"""
"""Return names and places of streams with waiting jobs: all, or about as many as asked for where there are more. Of the
highest priority those of the owners whose last turn is the longest ago, the oldest streams of each and those of the
wanted models, then those of the next priority. Keys: `waiting`, `turns`. Arguments: most streams, oldest ones of an
owner, wanted models."""

TAKE: Final = (
    ORDER
    + """
local group, consumer, most, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local prefix = ARGV[6]
local found = {}

local function key(suffix) return prefix .. ':' .. suffix end

local function made(suffix)
  redis.pcall('XGROUP', 'CREATE', key(suffix), group, '0', 'MKSTREAM')
end

local function add(suffix, entry, count) found[#found + 1] = {suffix, entry[1], count, entry[2]} end

local function note(suffix, after)
  local next = redis.call('XRANGE', key(suffix), '(' .. after, '+', 'COUNT', 1)[1]
  if next then redis.call('ZADD', KEYS[2], order_of(suffix, next[1]), suffix)
  else redis.call('ZREM', KEYS[2], suffix) end
end

local function claim(suffix)
  local cursor = '0-0'
  while #found < most do
    local reply = redis.pcall('XAUTOCLAIM', key(suffix), group, consumer, lease_ms, cursor, 'COUNT', most - #found)
    if reply.err then return end
    for _, entry in ipairs(reply[2]) do
      if entry and entry[2] then
        local pending = redis.call('XPENDING', key(suffix), group, entry[1], entry[1], 1)[1]
        add(suffix, entry, pending and pending[4] or 1)
      end
    end
    cursor = reply[1]
    if cursor == '0-0' then return end  -- a call looks at ten held jobs for each that it may take over
  end
end

local function tend(suffix)
  if string.find(suffix, '^jobs:[a-z]+:') and redis.call('XLEN', key(suffix)) == 0 then
    redis.call('DEL', key(suffix))
    redis.call('SREM', KEYS[3], suffix)
    redis.call('ZREM', KEYS[2], suffix)
    return
  end
  local groups = redis.pcall('XINFO', 'GROUPS', key(suffix))
  local last = nil
  if not groups.err then
    for _, fields in ipairs(groups) do
      local info = {}
      for i = 1, #fields, 2 do info[fields[i]] = fields[i + 1] end
      if info['name'] == group then last = info['last-delivered-id'] end
    end
  end
  if not last then made(suffix) end
  note(suffix, last or '0-0')
  claim(suffix)
end

local function owner_of(suffix) return string.match(suffix, '^jobs:[a-z]+:owner:([^:]+)') or '' end

local has_others = #ARGV > 9  -- than the common streams

local function take(suffix)
  local function read()
    return redis.pcall('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', key(suffix), '>')
  end
  local is_named = string.find(suffix, '^jobs:[a-z]+:')
  local reply = read()
  if reply and reply.err then
    if is_named and redis.call('EXISTS', key(suffix)) == 0 then
      redis.call('ZREM', KEYS[2], suffix)  -- with its last job, since the order was made
      return false
    end
    made(suffix)
    reply = read()
  end
  local entry = reply and not reply.err and reply[1] and reply[1][2][1]
  if not entry then
    if is_named then redis.call('ZREM', KEYS[2], suffix) end
    return false
  end
  if is_named then note(suffix, entry[1]) end
  if has_others then
    local now = redis.call('TIME')
    redis.call('ZADD', KEYS[6], now[1] * 1000000 + now[2], owner_of(suffix))
  end
  if entry[2] then add(suffix, entry, 1) end
  return true
end

local function take_turns(priority)
  local empty = {}
  repeat
    local served, has_any = {}, false
    for i = 7, #ARGV do
      local suffix, owner = ARGV[i], owner_of(ARGV[i])
      local is_next = string.match(suffix, '^jobs:([a-z]+)') == priority and not empty[suffix] and not served[owner]
      if is_next and #found < most then
        if take(suffix) then served[owner], has_any = true, true else empty[suffix] = true end
      end
    end
  until not has_any or #found >= most
end

local function tend_all()
  for i = 7, #ARGV do
    if not string.find(ARGV[i], '^jobs:[a-z]+:') then tend(ARGV[i]) end
  end
  for _, suffix in ipairs(redis.call('SMEMBERS', KEYS[3])) do
    if string.find(suffix, '^jobs:[a-z]+:[a-z]+:.') then tend(suffix) end
  end
  redis.call('ZREMRANGEBYRANK', KEYS[6], 0, -10001)
end

for _, suffix in ipairs(redis.call('SMEMBERS', KEYS[5])) do
  claim(suffix)
  if #found < most then redis.call('SREM', KEYS[5], suffix) end  -- all its held jobs were looked at
end
if redis.call('SET', KEYS[1], consumer, 'NX', 'PX', ARGV[5]) then tend_all() end
for _, priority in ipairs({'high', 'normal', 'low'}) do take_turns(priority) end
if #found == 0 and redis.call('ZCARD', KEYS[2]) == 0 and redis.call('XLEN', KEYS[4]) > 0 then
  tend_all()
  if #found == 0 then redis.call('XTRIM', KEYS[4], 'MAXLEN', 0) end
end
return found
"""
)
"""Take jobs from streams in their order, within a priority one of each owner in turn. One worker of all, each time a
while has passed, also takes over expired leases, notes what was added by hand, and removes named streams without
entries. Returns name, entry, deliveries and fields of each. Keys: the turn of that worker, `waiting`, names of named
streams, `wake`, `given-back`, `turns`. Arguments: group, consumer, most jobs, lease in milliseconds, milliseconds of
that turn, prefix, names of streams."""

RENEW: Final = """
local ours = {}
for i = 3, #ARGV do
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)
  if pending.err or not pending[1] then
    if redis.call('EXISTS', KEYS[i - 1]) == 0 then ours[#ours + 1] = ARGV[i] end
  elseif pending[1][2] == ARGV[2] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
    ours[#ours + 1] = ARGV[i]
  end
end
return ours
"""
"""Reset the idle time of entries that the consumer still holds, and return them, with those that have no result and
that nobody holds: Redis has lost them. Keys: stream, the entries' results. Arguments: group, consumer, entries."""

REMOVE: Final = """
local function remove(group, entry, suffix)
  redis.pcall('XACK', KEYS[1], group, entry)
  redis.call('XDEL', KEYS[1], entry)
  if string.find(suffix, '^jobs:[a-z]+:') and redis.call('XLEN', KEYS[1]) == 0 then
    redis.call('DEL', KEYS[1])
    redis.call('SREM', KEYS[3], suffix)
    redis.call('ZREM', KEYS[4], suffix)
  end
end
"""

FINISH: Final = f"""{REMOVE}
redis.call('SET', KEYS[2], ARGV[3], 'NX', 'EX', ARGV[4])
remove(ARGV[1], ARGV[2], ARGV[5])
return 1
"""
"""Store a result unless there is one, and remove the entry. Keys: stream, result, names of named streams, `waiting`.
Arguments: group, entry, result, result's seconds, the stream's name."""

BURY: Final = f"""{REMOVE}
if redis.call('SET', KEYS[2], ARGV[3], 'NX', 'EX', ARGV[4]) then
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', '10000', '*', 'id', ARGV[6], 'reason', ARGV[7], 'body', ARGV[8])
end
remove(ARGV[1], ARGV[2], ARGV[5])
return 1
"""
"""Like FINISH, with a dead letter beside the result. Further key: dead letters. Further arguments: id, reason, body."""

GIVE_BACK: Final = """
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)
if pending.err or not pending[1] then return redis.call('EXISTS', KEYS[2]) end
if pending[1][2] ~= ARGV[2] then return 1 end
local count = math.max(0, pending[1][4] - 1)
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'IDLE', ARGV[4], 'RETRYCOUNT', count, 'JUSTID')
redis.call('SADD', KEYS[4], ARGV[5])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', '1000', '*', 'stream', ARGV[5])
return 1
"""
"""Make an entry claimable at once, without counting its delivery. Returns 0 if Redis has lost it. Keys: stream, result,
`wake`, `given-back`. Arguments: group, consumer, entry, idle milliseconds, the stream's name."""

SIZES: Final = """
local sizes = {}
for i, key in ipairs(KEYS) do sizes[i] = redis.call('STRLEN', key) end
return sizes
"""
"""Return the lengths of results, 0 for none. Keys: results."""
