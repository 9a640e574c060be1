"""Lua scripts of the Redis broker: each is one atomic step on a stream and the keys beside it."""

from __future__ import annotations

from typing import Final

PUT: Final = """
if not redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[4]) then return 0 end
redis.call('XADD', KEYS[1], '*', 'id', ARGV[1], 'body', ARGV[2], 'owner', ARGV[3], 'asked', ARGV[5])
return 1
"""
"""Add a job unless its id is known. Keys: stream, marker of the id. Arguments: id, body, owner, marker's
seconds, the caller's id."""

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

FINISH: Final = """
redis.call('SET', KEYS[2], ARGV[3], 'NX', 'EX', ARGV[4])
redis.pcall('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
return 1
"""
"""Store a result unless there is one, and remove the entry. Keys: stream, result. Arguments: group, entry, result,
result's seconds."""

BURY: Final = """
redis.call('XADD', KEYS[3], 'MAXLEN', '~', '10000', '*', 'id', ARGV[5], 'reason', ARGV[6], 'body', ARGV[7])
redis.call('SET', KEYS[2], ARGV[3], 'NX', 'EX', ARGV[4])
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
return 1
"""
"""Like FINISH, with a dead letter. Keys: stream, result, dead letters. More arguments: id, reason, body."""

GIVE_BACK: Final = """
local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)
if pending.err or not pending[1] then return redis.call('EXISTS', KEYS[2]) end
if pending[1][2] ~= ARGV[2] then return 1 end
local count = math.max(0, pending[1][4] - 1)
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'IDLE', ARGV[4], 'RETRYCOUNT', count, 'JUSTID')
return 1
"""
"""Make an entry claimable at once, without counting its delivery. Returns 0 if Redis has lost it. Keys: stream, result.
Arguments: group, consumer, entry, idle milliseconds."""

SIZES: Final = """
local sizes = {}
for i, key in ipairs(KEYS) do sizes[i] = redis.call('STRLEN', key) end
return sizes
"""
"""Return the lengths of results, 0 for none. Keys: results."""
