--- Faults of a run's file system: plans for spec/fakes/disk_faults.c.
local ffi = require "ffi"
local host = require "spec.support.host"

ffi.cdef [[
  typedef struct { /* the first members of `state` in disk_faults.c */
    char root[256], after[256], until_[256];
    int32_t rank, at, what, number, lasts, reads, fired, over;
    int64_t fired_at;
    char fired_path[256];
    int32_t begun[8], calls[8];
    char log[8][4096];
  } disk_faults;
  disk_faults *disk_faults_new(const char *path);
  void disk_faults_free(disk_faults *s);
  void disk_faults_lose(disk_faults *s);
]]

local M = {}

M.library = host.path:match "^(.*)/" .. "/libax_disk_faults.so"
local lib

-- As in disk_faults.c.
local WHAT = { nothing = 0, kill = 1, launcher = 2, term = 3, power = 4, fail = 5, short = 6, slow = 7 }

local Plan = {}
Plan.__index = Plan

---@class DiskPlan
---@field rank? integer whose call goes wrong (default 0)
---@field at? integer which of its calls, from 1
---@field what? string a key of WHAT
---@field number? integer errno, or microseconds to sleep
---@field lasts? boolean later calls go wrong, too, until the script says that it is over
---@field reads? boolean calls that read count, in place of those that write

--- Makes a plan for a run that writes below `root`. Calls count from the first path on that has
--- `span[1]` in it, to the first that has `span[2]`.
---@param base string where its file goes
---@param root string
---@param span string[]
---@param plan DiskPlan
function M.plan(base, root, span, plan)
  lib = lib or ffi.load(M.library)
  local path = base .. "/faults"
  local state = lib.disk_faults_new(path)
  assert(state ~= nil, "cannot make " .. path)
  state.root, state.after, state.until_ = root, span[1], span[2] or ""
  state.rank, state.at, state.what = plan.rank or 0, plan.at or 0, WHAT[plan.what or "nothing"]
  state.number, state.lasts, state.reads = plan.number or 0, plan.lasts and 1 or 0, plan.reads and 1 or 0
  return setmetatable({ state = state, path = path }, Plan)
end

--- The environment of a run that has these faults.
function Plan:env()
  return { LD_PRELOAD = M.library, DISK_FAULTS = self.path,
    -- the sanitizer's own library comes later than this one, which does no harm
    ASAN_OPTIONS = (os.getenv "ASAN_OPTIONS" or "") .. ":verify_asan_link_order=0" }
end

--- Whether a call went wrong, when (seconds of the monotonic clock) and on which path.
function Plan:fired()
  local s = self.state
  if s.fired == 0 then return false end
  return true, tonumber(s.fired_at) * 1e-9, ffi.string(s.fired_path)
end

--- The letters of a rank's calls, as `hit` in disk_faults.c has them.
function Plan:calls(rank)
  return ffi.string(self.state.log[rank], math.min(self.state.calls[rank], 4096))
end

--- Takes away what a power cut loses.
function Plan:lose() lib.disk_faults_lose(self.state) end

function Plan:free()
  lib.disk_faults_free(self.state)
  os.remove(self.path)
end

return M
