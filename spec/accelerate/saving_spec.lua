-- utils.save and utils.load: nested values in safetensors files.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local ordered = require "accelerate.utils.ordered"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"
local messages = require "spec.support.messages"

local raises, raises_like = messages.raises, messages.raises_like

local folder, path = nil, nil

local function round(value)
  utils.save(value, path)
  return utils.load(path)
end

local function refuses(text, value)
  local ok, err = pcall(utils.save, value, path)
  assert.is_false(ok)
  assert.truthy(err:find(text, 1, true), err)
end

local DTYPES = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool" }

-- The endings stand for the two formats.
for _, ending in ipairs { "safetensors", "pt" } do
  describe("utils.save and utils.load (" .. ending .. ")", function()
    setup(function()
      folder = os.tmpname()
      os.remove(folder)
      assert(os.execute("mkdir '" .. folder .. "'"))
      path = folder .. "/value." .. ending
    end)
    teardown(function() os.execute("rm -r '" .. folder .. "'") end)

    it("keep every kind of plain value", function()
      local value = { list = { 1, "two", true, { 3 } },
        map = { a = 1, [10] = "ten", [2.5] = false, [true] = "yes" },
        empty = {}, text = "é \"quoted\"\n\\u0000 \127", ["a.b c"] = 1 }
      assert.same(value, round(value))
      for _, scalar in ipairs { 0, -1, "text", "", true, false } do assert.equal(scalar, round(scalar)) end
    end)

    it("keep numbers exactly", function()
      local numbers = { 0.1, 1 / 3, -1e300, 5e-324, 2 ^ 53, -2 ^ 53, 2 ^ 53 + 2, 2 ^ 63, 2 ^ 64, 1e308, 255,
        256, 65535,
        65536, -1, -128, -129, 2 ^ 31 - 1, 2 ^ 31, -2 ^ 31, -2 ^ 31 - 1, math.huge, -math.huge,
        123456789.123456789 }
      assert.same(numbers, round(numbers))
      local back = round { zero = -0.0, nan = 0 / 0 }
      assert.equal(-math.huge, 1 / back.zero)
      assert.is_true(back.nan ~= back.nan)
    end)

    it("keep strings of any bytes, as values and as keys", function()
      local all = {}
      for i = 0, 255 do all[i + 1] = string.char(i) end
      all = table.concat(all)
      local long = all:rep(100)
      local value = { all, long, "\0", "\255", "\237\160\128", "\192\175", "\244\144\128\128", "ab\195",
        [all] = long, ["\0"] = 1 }
      assert.same(value, round(value))
    end)

    it("keep tensors of every type and shape, 0-d and empty ones too", function()
      local value = {}
      for _, dtype in ipairs(DTYPES) do
        value[dtype] = { core.tensor({ { 1, 0, 1 }, { 0, 1, 1 } }, { dtype = dtype }),
          core.tensor(1, { dtype = dtype }),
          core.zeros(0, { dtype = dtype }), core.zeros({ 3, 0, 2 }, { dtype = dtype }),
          core.ones({ 1, 1, 1, 1, 1, 1, 1, 2 }, { dtype = dtype }) }
      end
      local back = round(value)
      for dtype, list in pairs(value) do
        for i, t in ipairs(list) do
          assert.equal(dtype, back[dtype][i].dtype)
          assert.same(t.shape, back[dtype][i].shape)
          assert.same(t:totable(), back[dtype][i]:totable())
        end
      end
      assert.equal(7, round(core.tensor(7)):item())
    end)

    it("keep what occurs twice one, and tables that hold themselves", function()
      local shared, t = { 1 }, core.ones(3)
      local value = { a = shared, b = { shared }, t = t, u = { t } }
      value.self, value.b.up = value, value
      local back = round(value)
      assert.equal(back.a, back.b[1])
      assert.equal(back.t, back.u[1])
      assert.equal(back, back.self)
      assert.equal(back, back.b.up)
    end)

    it("keep tensors that show common memory views of one another", function()
      local whole = core.arange(12, { dtype = "float32" }):view(3, 4)
      local back = round { row = whole[2], whole = whole, column = whole:t()[2], again = whole:detach(),
        all = whole:t() }
      assert.same({ 4, 5, 6, 7 }, back.row:totable())
      back.whole:zero_()
      assert.same({ 0, 0, 0, 0 }, back.row:totable())
      assert.same({ 0, 0, 0 }, back.column:totable())
      assert.equal(0, back.again:sum():item())
      assert.same({ 4, 3 }, back.all.shape)
      -- without a member that covers them all
      local left, right = whole[{ {}, { 1, 3 } }], whole[{ {}, { 2, 4 } }]
      back = round { left = left, right = right }
      assert.same(left:totable(), back.left:totable())
      assert.same(right:totable(), back.right:totable())
      back.left:fill_(7)
      assert.same({ { 7, 7, 3 }, { 7, 7, 7 }, { 7, 7, 11 } }, back.right:totable())
    end)

    it("write what does not overlap apart, however large the memory around it", function()
      local large = core.zeros(1000000)
      local back = round { large[{ { 1, 10 } }], large[{ { 11, 20 } }] }
      local f = io.open(path, "rb")
      local size = f:seek("end")
      f:close()
      assert.is_true(size < 3000, size)
      back[1]:fill_(1)
      assert.equal(0, back[2]:sum():item())
    end)

    it("bring views back contiguous, and what was computed without its history", function()
      local x = core.ones({ 2, 3 }, { requires_grad = true })
      local back = round { turned = core.arange(6):view(2, 3):t(), wide = core.ones(1):expand(5), leaf = x,
        computed = x * 2,
        parameter = nn.Parameter(core.zeros(2)),
        frozen = nn.Parameter(core.zeros(2), { requires_grad = false }) }
      assert.is_true(back.turned:is_contiguous())
      assert.same({ 3, 2 }, back.turned.shape)
      assert.equal(5, back.wide:sum():item())
      assert.is_true(back.leaf.requires_grad)
      assert.is_false(back.computed.requires_grad)
      assert.is_true(back.computed.is_leaf)
      local module = nn.class("Holder")()
      module.weight, module.frozen = back.parameter, back.frozen
      assert.equal(2, #module:parameters())
      assert.is_true(back.parameter.requires_grad)
      assert.is_false(back.frozen.requires_grad)
    end)

    it("keep the order of a state dict, and tied weights tied", function()
      local model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
      model[3].weight = model[1].weight
      local dict = model:state_dict()
      local back = round(dict)
      assert.same(ordered.keys(dict), ordered.keys(back))
      back["0.weight"]:zero_()
      assert.equal(0, back["2.weight"]:sum():item())
      model:load_state_dict(back)
    end)

    it("keep the states of optimizers, schedulers and scalers", function()
      local model = nn.Linear(4, 3)
      for _, name in ipairs { "AdamW", "SGD", "RMSprop", "Adagrad", "NAdam" } do
        local make = function()
          local o = optim[name](model:parameters(), { lr = 0.1 })
          return o, optim.lr_scheduler.SequentialLR(o, { schedulers = {
            optim.lr_scheduler.LinearLR(o, { total_iters = 2 }), optim.lr_scheduler.ReduceLROnPlateau
            and optim.lr_scheduler.CosineAnnealingLR(o, { T_max = 5 }) }, milestones = { 2 } })
        end
        local optimizer, scheduler = make()
        for _ = 1, 3 do
          model(core.ones(2, 4)):sum():backward()
          optimizer:step()
          scheduler:step()
        end
        local back = round { optimizer = optimizer:state_dict(), scheduler = scheduler:state_dict(),
          scaler = utils.GradScaler():state_dict() }
        local other, schedule = make()
        other:load_state_dict(back.optimizer)
        schedule:load_state_dict(back.scheduler)
        utils.GradScaler():load_state_dict(back.scaler)
        local a, b = optimizer:state_dict(), other:state_dict()
        assert.same(ordered.sorted_keys(a.state), ordered.sorted_keys(b.state))
        for n, state in pairs(a.state) do
          for key, v in pairs(state) do
            local w = b.state[n][key]
            assert.same(core.is_tensor(v) and v:totable() or v, core.is_tensor(w) and w:totable() or w,
              name .. key)
          end
        end
        assert.same(a.param_groups, b.param_groups)
        assert.same(scheduler:state_dict(), schedule:state_dict())
      end
      local o = optim.SGD(model:parameters(), { lr = 0.1 })
      local plateau = optim.lr_scheduler.ReduceLROnPlateau(o)
      assert.same(plateau:state_dict(), round(plateau:state_dict()))
    end)

    it("keep a hundred thousand tables inside each other", function()
      local value = {}
      local at = value
      for _ = 1, 1e5 do
        at.next = {}
        at = at.next
      end
      local back, depth = round(value), 0
      while back.next do back, depth = back.next, depth + 1 end
      assert.equal(1e5, depth)
    end)

    it("say where something is that is no data", function()
      refuses("save: '" .. path .. "': state.optimizer[3].hook is a function; expected a tensor, a number",
        { state = { optimizer = { 1, 2, { hook = print } } } })
      refuses("model is a Linear; expected a tensor, a number, a string, a boolean or a plain table; " ..
        "give what its " ..
        "state_dict() returns", { model = nn.Linear(1, 1) })
      refuses("generator is a userdata", { generator = tensor.Generator(1) })
      refuses("the value is a function", print)
      refuses("the value is nil", nil)
      refuses("a.b has a table as key; keys must be strings, numbers or booleans",
        { a = { b = { [{}] = 1 } } })
      refuses("has a tensor as key", { [core.ones(1)] = 1 })
      assert.is_nil(io.open(folder .. "/none." .. ending))
    end)

    it("replace a file whole or leave it", function()
      utils.save({ 1 }, path)
      assert.is_false(pcall(utils.save, { print }, path))
      assert.same({ 1 }, utils.load(path))
      local list, failed = { core.ones(3, 4):t(), core.ones(3) }, 0
      for n = 1, 200 do
        core.debug_fail_alloc(n)
        local ok, err = pcall(utils.save, list, path)
        core.debug_fail_alloc(0)
        if ok then break end
        failed = n
        assert.truthy(tostring(err):find("memory"), err)
        assert.same({ 1 }, utils.load(path))
      end
      assert.is_true(failed > 3 and failed < 200, failed)
      local pipe = io.popen("ls '" .. folder .. "'")
      assert.equal("value." .. ending .. "\n", pipe:read("*a"))
      pipe:close()
      raises("/nowhere/x", utils.save, 1, "/nowhere/x." .. ending)
    end)

    it("free everything when an allocation fails while they read", function()
      utils.save({ core.ones(3), { core.ones(2, 2):t() } }, path)
      collectgarbage()
      collectgarbage()
      local before, failed = core.memory_stats(), 0
      for n = 1, 200 do
        core.debug_fail_alloc(n)
        local ok, value = pcall(utils.load, path)
        core.debug_fail_alloc(0)
        if ok then
          core.release(value[1])
          core.release(value[2][1])
          break
        end
        failed = n
        value = nil -- luacheck: ignore 311
        collectgarbage()
        collectgarbage()
        assert.equal(before.live_bytes, core.memory_stats().live_bytes, n)
        assert.equal(before.structs, core.memory_stats().structs, n)
      end
      assert.is_true(failed > 3 and failed < 200, failed)
    end)
  end)
end

describe("utils.save", function()
  it("reads headers of every size, also one that begins as a pickle does", function()
    host.in_folder(function(dir)
      local file, alike = dir .. "/x.safetensors", 0
      for n = 0, 256, 8 do
        local value = { text = ("x"):rep(n) }
        utils.save(value, file)
        local f = assert(io.open(file, "rb"))
        if f:read(1) == "\128" then alike = alike + 1 end
        f:close()
        assert.same(value, utils.load(file))
      end
      assert.is_true(alike > 0)
    end)
  end)

  it("writes safetensors whose tensors have the names of their places", function()
    host.in_folder(function(dir)
      local file = dir .. "/state"
      utils.save({ model = { ["fc.weight"] = core.ones(2) },
        optimizer = { state = { [0] = { exp_avg = core.ones(2) } } },
        ["model.fc.weight"] = core.zeros(1) }, file)
      local f = utils.safe_open(file)
      local names = f:keys()
      table.sort(names)
      assert.same({ "model.fc.weight", "model.fc.weight#2", "optimizer.state.0.exp_avg" }, names)
      local metadata = f:metadata()
      assert.equal("pt", metadata.format)
      assert.equal(1, json.decode(metadata.structure).version)
      f:close()
    end)
  end)

  it("takes the format from the option before the ending", function()
    host.in_folder(function(dir)
      utils.save({ 1 }, dir .. "/a.bin", { safe_serialization = true })
      utils.save({ 1 }, dir .. "/b", { safe_serialization = false })
      assert.same({ 1 }, utils.load(dir .. "/a.bin"))
      assert.same({ 1 }, utils.load(dir .. "/b"))
      assert.equal("PK", io.open(dir .. "/b"):read(2))
      assert.is_true(pcall(utils.safe_open, dir .. "/a.bin"))
    end)
  end)

  it("writes on the main process only", function()
    host.in_folder(function(dir)
      local script = dir .. "/run.lua"
      local f = io.open(script, "w")
      f:write(([[
        local accelerate, utils = require "accelerate", require "accelerate.utils"
        local accelerator = accelerate.Accelerator()
        utils.save({ rank = accelerator.process_index }, "%s/" .. accelerator.process_index .. ".state")
        accelerator:wait_for_everyone()
        accelerator:print(utils.load("%s/0.state").rank, io.open("%s/1.state") == nil)
      ]]):format(dir, dir, dir))
      f:close()
      local status, out, err = host.run({ "--cpu", "--num_processes", "2", script }, { seconds = 60 })
      assert.equal("0\ttrue\n", out, err)
      assert.equal(0, status)
    end)
  end)
end)

describe("accelerate.load_safetensors", function()
  it("gives tensors by name in the file's order, and metadata; keys chooses", function()
    host.in_folder(function(dir)
      local file = dir .. "/x.safetensors"
      core.safetensors_save(file, { { "b", core.ones(2) }, { "a", core.zeros(3) } }, { note = "é" })
      local tensors, metadata = accelerate.load_safetensors(file)
      assert.same({ "b", "a" }, ordered.keys(tensors))
      assert.same({ note = "é" }, metadata)
      tensors = utils.load_safetensors(file, { keys = { "a" } })
      assert.same({ "a" }, ordered.keys(tensors))
      assert.same({ "b", "a" }, ordered.keys(utils.load(file)))
      raises_like("get_tensor: '.*' has no tensor 'c'", accelerate.load_safetensors, file, { keys = { "c" } })
      raises("keys[1]", accelerate.load_safetensors, file, { keys = { 1 } })
    end)
  end)
end)
