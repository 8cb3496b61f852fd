--- Random programs over the op table (spec/support/fuzz_ops.lua): what is refused says so by name,
--- what is done is done the same way twice, whatever lay in memory before.  `make fuzz ONLY=ops`
--- makes longer runs of it, from other seeds: FUZZ_SECONDS for each test, FUZZ_SEED.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local extremes = require "spec.support.fuzz_extremes"
local fuzz = require "spec.support.fuzz_ops"
local host = require "spec.support.host"
local values = require "spec.support.fuzz_values"

local FIRST, SECONDS = tonumber(os.getenv("FUZZ_SEED") or 1), tonumber(os.getenv("FUZZ_SECONDS") or 3)
local STEPS = 300

-- Seeds from `first` on: `least` of them, and more while there is time in a longer run.
local function seeds(first, least)
  local seed, stop = first - 1, os.time() + SECONDS
  return function()
    seed = seed + 1
    if seed < first + least or os.getenv("FUZZ_SECONDS") and os.time() < stop then return seed end
  end
end

-- Leaves `byte` in the blocks that the allocator hands out next: a result that was not written
-- everywhere shows.
local function soil(byte)
  local list, size = {}, 64
  while size <= 80000 do
    for _ = 1, 20 do list[#list + 1] = core.full({ size }, byte, { dtype = "uint8" }) end
    size = math.floor(size * 1.25 / 8) * 8
  end
  for _, t in ipairs(list) do core.release(t) end
end

local function held()
  for _ = 1, 3 do collectgarbage() end
  tensor.zeros(1) -- what finalisers dropped is cleared by the next call
  local s = core.memory_stats()
  return s.structs, s.live_blocks
end

describe("random values and modules", function()
  it("are saved, loaded, copied and averaged as they are, and junk is refused with our words", function()
    host.in_folder(function(folder)
      jit.off() -- traces may hold on to tensors that they met
      jit.flush()
      values.run(FIRST, 2, folder)
      local structs, blocks = held()
      local seed, stop = FIRST + 1, os.time() + SECONDS
      repeat
        values.run(seed, 2, folder)
        assert.are.same({ structs, blocks }, { held() }, "seed " .. seed)
        seed = seed + 1
      until os.time() >= stop
      jit.on()
    end)
  end)
end)

describe("random programs", function()
  it("give everything back when allocations fail half-way", function()
    jit.off() -- traces may hold on to tensors that they met
    jit.flush()
    fuzz.run(FIRST, STEPS, true)
    local structs, blocks = held()
    for seed in seeds(FIRST + 1, 6) do
      fuzz.run(seed, STEPS, true)
      local now_structs, now_blocks = held()
      if now_structs ~= structs then -- something that is made once, or a leak, which grows again
        structs, blocks = now_structs, now_blocks
        fuzz.run(seed, STEPS, true)
        now_structs, now_blocks = held()
      end
      assert.are.same({ structs, blocks }, { now_structs, now_blocks }, "seed " .. seed)
    end
    jit.on()
  end)

  it("take absurd attributes or refuse them, and end", function()
    for seed in seeds(FIRST + 9, 2) do extremes.run(seed, 40) end
  end)

  it("fit every row of the op table at times", function()
    for name, passed in next, fuzz.passes(FIRST, 60) do
      assert(passed > 0, name .. ": none of 60 calls succeeded; spec/support/fuzz_layers.lua can fit them")
    end
  end)

  it("succeed or say what is wrong, and give the same bits again", function()
    local seed, stop, passed, tried = FIRST, os.time() + SECONDS, 0, 0
    repeat
      soil(255)
      local hash, p, t = fuzz.run(seed, STEPS)
      soil(seed % 251)
      assert.are.equal(hash, (fuzz.run(seed, STEPS)), "seed " .. seed)
      seed, passed, tried = seed + 1, passed + p, tried + t
    until os.time() >= stop
    assert.is_true(passed > tried / 2,
      "most calls were refused: the programs have become too wild to mean anything")
  end)
end)
