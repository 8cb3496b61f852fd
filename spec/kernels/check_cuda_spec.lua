--- `make check-cuda`: a kernel that breaks its budget is named, with architecture, budget and
--- figure.
local check = require "spec.support.check_cuda"

-- What cuobjdump prints of a file with one kernel in two instances.
local function made(changes)
  local f = { registers = 40, stack = 0, shared = 0, accesses = { "LDG.E.128", "STG.E.128", "LDG.E.U16" } }
  for name, value in pairs(changes or {}) do f[name] = value end
  local lines = { "arch = sm_90", " Function _Z5applyIfEvPT_:",
    ("  REG:%d STACK:%d SHARED:%d LOCAL:0 CONSTANT[0]:560"):format(f.registers, f.stack, f.shared),
    " Function _Z5applyIdEvPT_:", "  REG:32 STACK:0 SHARED:0 LOCAL:0",
    "arch = sm_90", "\t\tFunction : _Z5applyIfEvPT_" }
  for _, access in ipairs(f.accesses) do
    lines[#lines + 1] = ("        /*0130*/              @!P0 %s R4, desc[UR6][R2.64] ;"):format(access)
  end
  lines[#lines + 1] = "\t\tFunction : _Z5applyIdEvPT_"
  return table.concat(lines, "\n")
end

local function broken(changes, line)
  local budgets = check.parse("# head\n" .. (line or "norm apply threads=256 sm_90=48/0/1/1") .. "\n")
  local worst = check.figures("norm", check.instances(made(changes)), budgets)
  return check.compare("norm apply", worst["norm apply"], budgets["norm apply"])
end

describe("check-cuda", function()
  it("is content with what is within its budget", function()
    assert.are.same({}, broken())
    assert.are.same({}, broken({ registers = 16, accesses = { "LDG.E.128", "STG.E.128" } }))
  end)

  it("names kernel, architecture, figure and budget of what is not", function()
    local function one(changes, line)
      local lines = broken(changes, line)
      assert.are.equal(1, #lines, table.concat(lines, "\n"))
      return lines[1]
    end
    assert.are.equal("norm.cu: apply, sm_90: warps: 24, the budget is at least 48 (80 registers a thread)",
      one { registers = 80 })
    assert.are.equal("norm.cu: apply, sm_90: stack: 24, the budget is at most 0", one { stack = 24 })
    assert.are.equal("norm.cu: apply, sm_90: narrow: 2, the budget is at most 1",
      one { accesses = { "LDG.E.128", "STG.E.128", "LDG.E.U16", "STG.E" } })
    assert.are.equal("norm.cu: apply, sm_90: wide: 0, the budget is at least 1",
      one { accesses = { "LDG.E.64", "STG.E" } })
    assert.are.equal("norm.cu: apply, sm_90: warps: 16, the budget is at least 48 (40 registers a thread)",
      one { shared = 90000 })
  end)

  it("wants a budget for every kernel and a reason for a stack above 64 bytes", function()
    assert.truthy(broken({}, "norm apply threads=256 sm_80=48/0/1/1")[1]:find("has no budget", 1, true))
    local line = 'norm apply threads=256 sm_90=48/80/1/1'
    assert.truthy(broken({ stack = 80 }, line)[1]:find("80 bytes of stack: above 64 a reason", 1, true))
    assert.are.same({}, broken({ stack = 80 }, 'norm apply threads=256 reason="a copy" sm_90=48/80/1/1'))
  end)

  it("compares a launch's blocks with what a multiprocessor holds, and threads with registers",
    function()
    local line = "norm apply threads=256 blocks=%d sm_90=0/0/1/1"
    assert.are.same({}, broken({}, line:format(6)))
    local function second(blocks, held, registers, shared, more)
      return { ("norm.cu: apply, sm_90: a launch has %d blocks for each multiprocessor, which holds %d " ..
        "(%d registers a thread, %d bytes of shared memory): a second round of %d"):format(blocks, held,
        registers, shared, more) }
    end
    assert.are.same(second(7, 6, 40, 0, 132), broken({}, line:format(7)))
    assert.are.same(second(6, 2, 128, 0, 528), broken({ registers = 128 }, line:format(6)))
    assert.are.same(second(6, 2, 40, 90000, 528), broken({ shared = 90000 }, line:format(6)))
    assert.are.same(second(2, 1, 40, 0, 132), broken({}, "norm apply threads=1024 blocks=2 sm_90=0/0/1/1"))
    assert.truthy(broken({ registers = 128 }, "norm apply threads=1024 sm_90=0/0/1/1")[1]:find(
      "128 registers a thread x 1024 threads are more than 65536", 1, true))
  end)

  it("counts the rounds of a grid that follows from the sizes", function()
    local line = "norm apply threads=256 grid=1000 sm_90=0/0/1/1/%d"
    assert.are.same({}, broken({}, line:format(2)))
    assert.are.same(
      { "norm.cu: apply, sm_90: rounds: 2, the budget is at most 1 (a grid of 1000 blocks for " ..
      "792 slots, 132 multiprocessors x 6)" }, broken({}, line:format(1)))
    assert.are.same(
      { "norm.cu: apply, sm_90: rounds: 4, the budget is at most 2 (a grid of 1000 blocks for " ..
      "264 slots, 132 multiprocessors x 2)" }, broken({ registers = 128 }, line:format(2)))
    assert.has_error(function() check.parse "norm apply threads=256 grid=1000 sm_90=0/0/1/1" end)
    assert.has_error(function() check.parse "norm apply threads=256 sm_90=0/0/1/1/2" end)
  end)

  it("writes a table that it reads back", function()
    local worst = check.figures("norm", check.instances(made()), {})
    local text = check.format("# head\n", {}, worst)
    local b = check.parse(text)["norm apply"]
    assert.are.same({ warps = 48, stack = 0, wide = 1, narrow = 1 }, b.archs.sm_90)
    assert.are.equal(256, b.threads)
    local given = check.parse "norm apply threads=128 blocks=3 grid=1000 sm_80=1/2/3/4/5"
    worst = check.figures("norm", check.instances(made()), given)
    b = check.parse(check.format("# head\n", given, worst))["norm apply"]
    assert.are.same({ 128, 3, 1000, 5, 1 }, { b.threads, b.blocks, b.grid, b.archs.sm_80.rounds,
      b.archs.sm_90.rounds })
  end)
end)
