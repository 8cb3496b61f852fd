-- find_executable_batch_size, should_reduce_batch_size, release_memory, clear_device_cache.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local utils = accelerate.utils

local MB = 1e6

-- Runs body with a limit of `bytes` more than what lives now.
local function limited(bytes, body)
  collectgarbage()
  collectgarbage()
  local stats = utils.memory_stats()
  local former = stats.limit_bytes
  utils.set_memory_limit(stats.live_bytes + bytes)
  local ok, message = pcall(body)
  utils.set_memory_limit(former)
  if not ok then error(message, 0) end
end

describe("find_executable_batch_size", function()
  it("multiplies the size by 0.9, rounded down, until it fits, and keeps it", function()
    local tried = {}
    local train = utils.find_executable_batch_size(function(batch_size, text, more)
      tried[#tried + 1] = batch_size
      core.zeros(batch_size, 1000, 250) -- a MB for each
      return text, more, batch_size
    end)
    limited(110 * MB, function()
      assert.are.same({ "text", 5, 92 }, { train("text", 5) })
      assert.are.same({ 128, 115, 103, 92 }, tried)
      assert.are.same({ "again", 92 }, { (train("again")), (select(3, train("again"))) })
      assert.are.equal(6, #tried)
    end)
  end)

  it("frees what the failed tries held", function()
    local train = utils.find_executable_batch_size({ starting_batch_size = 100 }, function(batch_size)
      local held = {}
      for i = 1, batch_size do held[i] = core.zeros(1000, 250) end
      return #held
    end)
    limited(50.5 * MB, function()
      local found = train()
      assert.is_true(found <= 50 and found >= 43, found) -- at once below: 100 90 81 72 64 57 51 45
    end)
  end)

  it("takes the next size from a function, which must give a smaller one", function()
    local asked = {}
    local options = { starting_batch_size = 64, reduce_batch_size_fn = function(size)
      asked[#asked + 1] = size
      return size / 2
    end }
    local function body(batch_size)
      if batch_size > 10 then error("CUDA out of memory. Tried to allocate 2.00 GiB") end
      return batch_size
    end
    assert.are.equal(8, utils.find_executable_batch_size(options, body)())
    assert.are.same({ 64, 32, 16 }, asked)
    -- options alone: what it returns takes the function
    assert.are.equal(8, utils.find_executable_batch_size(options)(body)())
    for _, wrong in ipairs { 64, 65, 1.5, "x", -1 } do
      assert.error_matches(utils.find_executable_batch_size({ starting_batch_size = 64,
        reduce_batch_size_fn = function()
          return wrong
        end }, body), "find_executable_batch_size: .*reduce_batch_size_fn")
    end
  end)

  it("raises when it comes to 0, and lets other errors pass", function()
    local tries = 0
    local function never(batch_size)
      tries = tries + 1
      core.zeros(batch_size, 2 ^ 40)
    end
    assert.error_matches(utils.find_executable_batch_size({ starting_batch_size = 4 }, never),
      "find_executable_batch_size: no batch size fits, also 1 ran out of memory: .*out of memory")
    assert.are.equal(4, tries) -- 4 3 2 1
    tries = 0
    assert.error_matches(utils.find_executable_batch_size(function(_)
      tries = tries + 1
      error("boom")
    end), "boom\nstack traceback:")
    assert.are.equal(1, tries)
    local thrown = {}
    local ok, caught = pcall(utils.find_executable_batch_size(function(_) error(thrown) end))
    assert.is_false(ok)
    assert.are.equal(thrown, caught)
  end)

  it("takes its options before the function, as contexts do", function()
    assert.error_matches(function()
      utils.find_executable_batch_size(function(size) return size end, { starting_batch_size = 4 })
    end, "options come before the function: write find_executable_batch_size%({ " ..
      "starting_batch_size = 4 }, fn%)")
    assert.are.equal(4, utils.find_executable_batch_size({ starting_batch_size = 4 },
      function(size) return size end)())
  end)

  it("notices a size that is passed by hand, and wrong arguments", function()
    local train = utils.find_executable_batch_size(function(batch_size, model) return batch_size, model end)
    assert.error_matches(function() train(128, "model") end,
      "called with 2 arguments, but the function takes 1 after the batch size; the batch size is passed " ..
      "by find_executable_batch_size itself")
    assert.are.equal(128, (train("model")))
    local any = utils.find_executable_batch_size(function(batch_size, ...) return batch_size, ... end)
    assert.are.same({ 128, 1, 2, 3 }, { any(1, 2, 3) })
    assert.error_matches(function() utils.find_executable_batch_size(function() end) end,
      "fn must take the batch size as its first argument")
    assert.error_matches(function() utils.find_executable_batch_size() end, "fn is missing")
    assert.error_matches(function() utils.find_executable_batch_size(3) end, "fn must be a function, got 3")
    assert.error_matches(function() utils.find_executable_batch_size({ starting_batch_size = 0 }, print) end,
      "must be at least 1, got 0")
    assert.error_matches(function() utils.find_executable_batch_size({ start = 1 }, print) end,
      "unknown option 'start'")
    assert.are.equal(utils.find_executable_batch_size, accelerate.find_executable_batch_size)
  end)
end)

describe("memory helpers", function()
  it("should_reduce_batch_size knows the messages of a full memory, ours and others'", function()
    local reduce = utils.should_reduce_batch_size
    limited(1 * MB, function()
      local ok, message = pcall(core.zeros, 1000, 1000)
      assert.is_false(ok)
      assert.is_true(reduce(message), message)
    end)
    local ok, message = pcall(string.rep, "x", 2 ^ 60) -- Lua's own
    assert.is_true(ok or reduce(message) or message:find("overflow") ~= nil)
    for _, text in ipairs { "CUDA out of memory.", "not enough memory",
      "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
      "DefaultCPUAllocator: can't allocate memory", "PT_DEVMEM Allocation failed",
      "HIP out of memory. Tried to allocate 2.00 GiB", "XPU out of memory.", "MPS backend out of memory" } do
      assert.is_true(reduce(text))
    end
    for _, other in ipairs { "shapes do not fit", "", 3, true, {}, print,
      "boom\nstack traceback:\n\t out of memory" } do
      assert.is_false(reduce(other))
    end
    assert.is_false(reduce())
  end)

  it("release_memory gives a nil for each argument, and the memory back", function()
    collectgarbage()
    collectgarbage()
    local before = utils.memory_stats().live_bytes
    local a, b, c = core.zeros(1000, 1000), { core.zeros(1000, 1000) }, 3
    assert.is_true(utils.memory_stats().live_bytes >= before + 8 * MB)
    a, b, c = utils.release_memory(a, b, c)
    assert.is_true(a == nil and b == nil and c == nil)
    assert.are.equal(3, select("#", utils.release_memory(1, 2, 3)))
    assert.are.equal(0, select("#", utils.release_memory()))
    utils.clear_device_cache { garbage_collection = true }
    assert.is_true(utils.memory_stats().live_bytes <= before)
  end)

  it("clear_device_cache finds what compiled code alone holds", function()
    local function run()
      local weight, n = core.zeros(1000, 1000), 0
      local function get() return weight end
      for _ = 1, 1000 do n = n + (get() and 1 or 0) end -- its trace is for this `get`
      return n
    end
    utils.clear_device_cache(true)
    local before = utils.memory_stats().live_bytes
    run()
    utils.clear_device_cache(true)
    assert.is_true(utils.memory_stats().live_bytes <= before)
  end)

  it("clear_device_cache empties the cache, and collects only when asked", function()
    utils.clear_device_cache(true)
    local before = utils.memory_stats().live_bytes
    core.zeros(1000, 1000)  -- garbage
    core.release(core.zeros(1000, 1000))
    assert.is_true(utils.memory_stats().cached_bytes >= 4 * MB)
    utils.clear_device_cache()
    assert.are.equal(0, utils.memory_stats().cached_bytes)
    utils.clear_device_cache { garbage_collection = true }
    assert.is_true(utils.memory_stats().live_bytes <= before)
    assert.error_matches(function() utils.clear_device_cache { garbage = true } end,
      "unknown option 'garbage'")
    assert.error_matches(function() utils.clear_device_cache(3) end, "options must be a table, got 3")
  end)
end)
