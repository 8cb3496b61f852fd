--- tensor.no_grad, enable_grad, autocast and scope in coroutines: what holds inside holds for the
--- coroutine that is inside, and waits with it.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"

local create, resume, yield = coroutine.create, coroutine.resume, coroutine.yield

-- Runs the coroutine to its next yield; returns what it yielded.
local function step(co, ...)
  local result = { resume(co, ...) }
  assert(result[1], result[2])
  return unpack(result, 2)
end

local function on() return core.is_grad_enabled() end

describe("a coroutine that yields", function()
  it("inside no_grad leaves gradients on outside, and finds them off again", function()
    local co = create(function()
      tensor.no_grad(function()
        yield(on())
        tensor.enable_grad(function() yield(on()) end)
        yield(on())
      end)
      yield(on())
    end)
    local x = tensor.ones(2, { requires_grad = true })
    for _, inside in ipairs { false, true, false, true } do
      assert.are.equal(inside, step(co))
      assert.is_true((x * 2).requires_grad)
      assert.is_true(on())
    end
  end)

  it("inside enable_grad leaves them off where they were off", function()
    local co = create(function() tensor.enable_grad(function() yield() return on() end) end)
    tensor.no_grad(function()
      step(co)
      assert.is_false(on())
    end)
    assert.is_true(on())
    step(co)
    assert.is_true(on())
  end)

  it("may take turns with others", function()
    local function program(set, expected)
      return create(function()
        for _ = 1, 3 do
          set(function()
            for _ = 1, 2 do
              assert.are.equal(expected, on())
              yield()
            end
          end)
          assert.is_true(on())
          yield()
        end
      end)
    end
    local list = {}
    for k = 1, 6 do list[k] = program(k % 2 == 0 and tensor.no_grad or tensor.enable_grad, k % 2 ~= 0) end
    for round = 1, 9 do
      for k = 1, 6 do
        step(list[(k + round) % 6 + 1])
        assert.is_true(on())
      end
    end
  end)

  it("may resume another one inside", function()
    local inner = create(function() tensor.enable_grad(function() yield(on()) yield(on()) end) end)
    local outer = create(function()
      tensor.no_grad(function()
        assert.is_true(step(inner))
        yield(on())
        yield(on())
      end)
    end)
    assert.is_false(step(outer))
    assert.is_true(step(inner)) -- outside of the one that began it
    assert.is_true(on())
    assert.is_false(step(outer))
    assert.is_true(on())
  end)

  it("inside autocast leaves it off outside", function()
    local a = tensor.ones(2, 2)
    local co = create(function()
      tensor.autocast({ dtype = "bfloat16" }, function()
        for _ = 1, 2 do yield(a:mm(a).dtype) end
      end)
      yield(a:mm(a).dtype)
    end)
    for _, dtype in ipairs { "bfloat16", "bfloat16", "float32" } do
      assert.are.equal(dtype, step(co))
      assert.are.equal("float32", a:mm(a).dtype)
      assert.is_false(tensor.is_autocast_enabled())
    end
  end)

  it("inside tensor.scope has its own results emptied, and no others", function()
    local lost, kept
    local co = create(function()
      return tensor.scope(function()
        lost = tensor.ones(2) + 1
        yield()
        kept = tensor.ones(2) + 2
        return kept
      end)
    end)
    step(co)
    local mine = tensor.ones(2) + 3
    step(co)
    assert.is_true(core.is_released(lost))
    assert.are.same({ 3, 3 }, kept:totable())
    assert.are.same({ 4, 4 }, mine:totable())
  end)

  it("and is never resumed, or raises, leaves nothing behind", function()
    for _ = 1, 200 do
      local co = create(function()
        tensor.no_grad(function() tensor.scope(function() local _ = tensor.ones(2) + 1 yield() end) end)
      end)
      step(co)
      co = nil -- luacheck: ignore
      collectgarbage()
      assert.is_true(on())
    end
    local co = create(function() tensor.no_grad(function() yield() error("enough") end) end)
    step(co)
    assert.is_true(on())
    local ok, message = resume(co)
    assert.is_false(ok)
    assert.is_truthy(message:find("enough", 1, true))
    assert.is_true(on())
  end)
end)
