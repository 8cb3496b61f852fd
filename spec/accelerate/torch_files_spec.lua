-- Files that PyTorch and safetensors wrote, and damaged ones.
local core = require "accelerate.core"
local disk = require "spec.support.disk"
local fuzz = require "spec.support.fuzz_files"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local ordered = require "accelerate.utils.ordered"
local pickle = require "accelerate.files.pickle"
local reference = require "spec.reference.saving_reference"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"

local path = os.tmpname()

local function load(hex, opts)
  disk.write(path, disk.from_hex(hex))
  return utils.load(path, opts)
end

local function refused(text, hex)
  local ok, err = pcall(load, hex)
  assert.is_false(ok)
  assert.truthy(err:find(text, 1, true), err)
  assert.truthy(err:find(path, 1, true), err)
end

local DTYPES = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool" }

local function check_types(found)
  for _, dtype in ipairs(DTYPES) do
    local one, zero = dtype == "bool" or 1, dtype ~= "bool" and 0
    local matrix, scalar = found[dtype .. ".matrix"], found[dtype .. ".scalar"]
    assert.equal(dtype, matrix.dtype)
    assert.same({ { one, zero, one }, { zero, one, one } }, matrix:totable())
    assert.same({}, scalar.shape)
    assert.equal(one, scalar:item())
    assert.same({ 3, 0, 2 }, found[dtype .. ".empty"].shape)
    assert.same({ 1, 3, 1, 1, 5 }, found[dtype .. ".odd"].shape)
    assert.equal(15, found[dtype .. ".odd"]:float():sum():item())
  end
end

local function check_values(v)
  assert.is_nil(v.none)
  assert.equal("é", v.text)
  assert.equal("\0\255\128", v.raw)
  assert.equal(2 ^ 53, v.big)
  assert.equal(-300, v.negative)
  assert.equal(2 ^ 40, v.long)
  assert.equal(3.25, v.pi)
  assert.is_true(v["true"])
  assert.same({ 1, "two" }, v.pair)
  assert.same({ 2, 3 }, v.size)
  assert.same({ a = {}, [7] = {}, [true] = { { 1, 2 }, { 1, 2 } } }, v.nested)
  assert.equal(v.nested[true][1], v.nested[true][2])
  assert.same({ "z", "a" }, ordered.keys(v.ordered))
  assert.is_true(v.leaf.requires_grad)
  local holder = nn.class("Holder")()
  holder.weight = v.parameter
  assert.equal(1, #holder:parameters())
  assert.same({ 1, 3 }, v.turned:stride())
  v.base:zero_()
  assert.equal(0, v.row:sum():item() + v.turned:sum():item())
end

describe("a file of Python's", function()
  teardown(function() os.remove(path) end)

  it("holds tensors of every type and shape (safetensors)", function()
    check_types(load(reference.safetensors))
    assert.equal("é", utils.safe_open(path):metadata().note)
  end)

  it("holds tensors of every type and shape (torch.save)", function()
    check_types(load(reference.types))
    assert.same({ 1, -2 }, load(reference.whole).x:totable())
  end)

  it("holds plain values, in every protocol", function()
    for protocol = 2, 5 do
      check_values(load(reference.values[protocol]))
    end
  end)

  it("holds the states of a model, an optimizer and a scheduler", function()
    local state = load(reference.training)
    local model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    local optimizer = optim.AdamW(model:parameters(), { lr = 1 })
    local scheduler = optim.lr_scheduler.StepLR(optimizer, { step_size = 2 })
    model:load_state_dict(state.model)
    optimizer:load_state_dict(state.optimizer)
    assert.same(ordered.keys(model:state_dict()), ordered.keys(state.model))
    assert.equal(0.125, optimizer.param_groups[1].lr)
    assert.equal(1, optimizer:state_dict().state[0].step)
    assert.equal(1, state.scheduler.last_epoch)
    assert.equal(1, scheduler.last_epoch + 1)
  end)

  it("may be no archive, as before PyTorch 1.6", function()
    assert.same({ 1 }, load(reference.legacy).x:totable())
    check_values(load(reference.legacy_values))
    check_types(load(reference.legacy_types))
  end)

  it("holds complex numbers too", function()
    local z = load(reference.complex)
    assert.same({ "complex64", { { 1, 0 } } }, { z.dtype, z:totable() })
  end)

  it("holds values that have another form in Lua", function()
    for _, protocol in ipairs { 2, 4, 5 } do
      local v = load(reference.forms[protocol])
      assert.is_true(ordered.is_ordered(v.counter))
      assert.same({ 2, 1 }, { v.counter[8], v.counter[3] })
      v.counter = nil
      assert.same({ default = { a = { 1 } }, eps = { false, 1e-3 }, lists = { 1, false, { false } },
        dtype = "int8", device = "cuda:1", cpu = "cpu", layout = "strided", set = { 4 }, frozen = { 5 },
        complex = { 1, 2 }, size = { 2 }, array = "\0\255" }, v)
    end
  end)

  it("is loaded without what has no form here where strict = false asks for it", function()
    for _, name in ipairs { "mixed", "legacy_mixed" } do
      refused("args is Python's argparse.Namespace, which has no form in Lua; with { strict = false } " ..
        "everything else is loaded", reference[name])
      local v, left = load(reference[name], { strict = false })
      assert.same({ 1, 1 }, v.model.w:totable())
      assert.same({ "deque", "dict", "float8", "last", "model", "numpy", "p" }, ordered.sorted_keys(v))
      assert.equal("float8_e5m2", v.float8.dtype)
      assert.same({ 1, 1 }, v.float8:totable())
      assert.same({ 1 }, v.last:totable())
      assert.same({ 1 }, v.p:totable())
      assert.is_true(v.p.requires_grad)
      assert.is_true(core.is_tensor(v.numpy[1]))
      assert.equal(2, v.numpy[2])
      assert.is_table(v.deque)
      assert.same({ k = 4 }, v.dict)
      table.sort(left)
      for i, line in ipairs(left) do left[i] = line:gsub(";.*$", "") end
      assert.same({
        "args: Python's argparse.Namespace",
        "dict: an entry with a table as key of a dict",
        "function: Python's builtins.len",
        "huge: an integer of 9 bytes, which Lua's numbers do not hold",
        "inexact: the integer 9007199254740993, which Lua's numbers do not hold exactly",
        "int8: a tensor of int8",
      }, left)
    end
    local _, left = load(reference.refused.tuple_key, { strict = false })
    assert.truthy(left[1]:find("^the value: an entry with a table as key of a dict"), left[1])
    _, left = load(reference.whole, { strict = false })
    assert.same({}, left)
    assert.is_nil(select(2, load(reference.whole)))
    local ok, err = pcall(load, reference.refused.module, { strict = false })
    assert.is_false(ok)
    assert.truthy(err:find("it is Python's torch.nn.modules.linear.Linear", 1, true), err)
  end)

  it("is refused by name when it holds what is no plain data", function()
    local expected = {
      class = "it is Python's fractions.Fraction",
      ["function"] = "it is Python's builtins.len",
      complex32 = "x is a tensor of complex32; tensors here are float32, float64",
      int8 = "x[1] is a tensor of int8; tensors here are float32, float64",
      huge = "[1] is an integer of 9 bytes, which Lua's numbers do not hold",
      inexact = "[1] is the integer 9007199254740993, which Lua's numbers do not hold exactly",
      tuple_key = "the value: an entry with a table as key of a dict; expected a string, " ..
        "a number or a boolean",
      module = "it is Python's torch.nn.modules.linear.Linear, which has no form in Lua; save a state_dict()",
    }
    for name, hex in pairs(reference.refused) do refused(expected[name], hex) end
    disk.write(path, "\128\2K\1.")
    local ok, err = pcall(utils.load, path)
    assert.is_false(ok)
    assert.truthy(err:find(path .. "': a pickle that torch.save did not write", 1, true), err)
  end)
end)

-- A file with this pickle, and storages of bytes.
local function archive(text, storages)
  local members = { { "a/data.pkl", text } }
  for key, bytes in pairs(storages or {}) do members[#members + 1] = { "a/data/" .. key, bytes } end
  core._zip_write(path, members, "save")
end

describe("a list of values that have no form here", function()
  teardown(function() os.remove(path) end)

  -- losses that are NumPy's numbers, say
  it("is looked at once, not for each of them", function()
    archive("\128\2](" .. ("ca\nb\n"):rep(500) .. "e.")
    local is_list, calls = ordered.is_list, 0
    ordered.is_list = function(t)
      calls = calls + 1
      return is_list(t)
    end
    local ok, value, left = pcall(utils.load, path, { strict = false })
    ordered.is_list = is_list
    assert.is_true(ok)
    assert.same({ 500, 500, false, false }, { #value, #left, value[1], value[500] })
    assert.is_true(calls < 10, calls)
  end)
end)

describe("None in a list", function()
  -- LBFGS keeps such a list: as many places as it remembers steps, filled one by one
  it("is false, also behind tensors", function()
    local one = "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000" ..
      "X\3\0\0\0cpuK\1tQK\0K\1\133K\1\133\137ccollections\nOrderedDict\n)RtR"
    archive("\128\2}(X\1\0\0\0a](" .. one .. "NNeX\1\0\0\0b](NNeu.", { ["0"] = "\0\0\128?" })
    local value = utils.load(path)
    assert.equal(3, #value.a)
    assert.equal(1, value.a[1]:item())
    assert.same({ false, false }, { value.a[2], value.a[3] })
    assert.same({ false, false }, value.b)
  end)
end)

-- The pickle of a value as utils.save writes it.
local function pickled(value)
  local file = path .. ".pt"
  utils.save(value, file)
  local zip, text = core._zip_open(file, "load"), nil
  for i, name in ipairs(zip:names()) do
    if name:find("data.pkl$") then text = zip:text(i) end
  end
  zip:close()
  os.remove(file)
  return text
end

describe("what PyTorch wrote", function()
  it("has PyTorch's form again when it is saved, also by way of a copy or of safetensors", function()
    local function check(value)
      local text = pickled(value)
      assert.truthy(text:find("ccollections\nCounter\n}(K\3K\1K\8K\2u\133R", 1, true))
      assert.truthy(text:find("c__builtin__\nset\n](K\4e\133R", 1, true))
      assert.truthy(text:find("X\4\0\0\0noneNs", 1, true))
      assert.truthy(text:find("X\3\0\0\0eps%][rq].-%(NG"))
    end
    local value = load(reference.forms[2])
    check(value)
    check(utils.deepcopy(value))
    utils.save(value, path)
    check(utils.load(path))
  end)

  it("has it for lists of a kind that files in PyTorch's format know", function()
    local python = require "accelerate.utils.python"
    assert.truthy(pickled(python.set { 3, 4 }):find("c__builtin__\nset\n](K\3K\4e\133R", 1, true))
    assert.truthy(pickled(python.none(python.set { false, 3 }, 1)):find("](NK\3e\133R", 1, true))
    assert.truthy(pickled(python.set {}):find("](e\133R", 1, true))
    assert.truthy(pickled(python.counter { 5, 2, 5 }):find("}(K\5K\2K\2K\1u\133R", 1, true))
    assert.falsy(pickled(python.counter { 0 / 0, { 1 } }):find("Counter", 1, true))
    assert.falsy(pickled(python.set { { 1 } }):find("set", 1, true))
  end)

  it("has what the script put in its place", function()
    local value = load(reference.forms[2])
    value.none, value.eps[1], value.lists[3] = 7, 0.5, nil
    local text = pickled(value)
    assert.falsy(text:find("noneN", 1, true))
    assert.truthy(text:find("X\4\0\0\0noneK\7", 1, true))
    assert.truthy(text:find("X\3\0\0\0eps%][rq].-%(GG?"))
    assert.truthy(text:find("%(K\1Ne"))
  end)
end)

local function wrong(text, opcodes, storages)
  archive("\128\2" .. opcodes, storages)
  local ok, err = pcall(utils.load, path)
  assert.is_false(ok)
  assert.truthy(err:find(text, 1, true), err)
  assert.truthy(err:find(path, 1, true), err)
end

describe("a pickle", function()
  teardown(function() os.remove(path) end)

  local STORAGE = "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\2tQ"
  local function rebuilt(sizes)
    return "ctorch._utils\n_rebuild_tensor_v2\n(" .. STORAGE .. sizes ..
      "\137ccollections\nOrderedDict\n)RtR."
  end

  it("is refused, whatever is wrong with it", function()
    wrong("the pickle ends inside a value", "")
    wrong("the pickle ends inside a value", "X\255\255\255\255abc.")
    wrong("the pickle ends inside a value", "\141\255\255\255\255\255\255\255\255abc.")
    wrong("protocol 6; known are 2 to 5", "\128\6.")
    wrong("the opcode INST, which plain values do not need", "(ios\nsystem\n.")
    wrong("a call of None", "N)\129.")
    wrong("the opcode 0xff", "\255.")
    wrong("it is Python's os.system", "cos\nsystem\n.")
    wrong("it is Python's posix.system", "\140\5posix\140\6system\147.")
    wrong("it is Python's builtins.eval", "cbuiltins\neval\nX\1\0\0\0001\133R.")
    wrong("a is Python's os.system", "}X\1\0\0\0acos\nsystem\nX\1\0\0\0001\133Rs.")
    wrong("a is Python's a.b", "}X\1\0\0\0aca\nb\n)\129}b(K\1es.")
    wrong("an OrderedDict of no pairs", "ccollections\nOrderedDict\nK\1\133R.")
    wrong("a Counter of no dict", "ccollections\nCounter\nK\1\133R.")
    wrong("a set of no list", "c__builtin__\nset\nK\1\133R.")
    wrong("a complex number of no numbers", "c__builtin__\ncomplex\n)R.")
    wrong("torch.device of no device", "ctorch\ndevice\n)R.")
    wrong("a name that is none", "ctorch storage\nx\n.")
    wrong("a value is missing", ".")
    wrong("a value is missing", "(K\1s.")
    wrong("a mark is missing", "K\1t.")
    wrong("the memo has no entry 7", "h\7.")
    wrong("a key without a value", "}(K\1u.")
    wrong("items for a number, which is no list", "K\1K\2a.")
    wrong("items for a number, which is no dict", "K\1(K\1K\2u.")
    wrong("a nan as key of a dict", "}(G\127\248\0\0\0\0\0\0K\2u.")
    wrong("a call of number", "K\1)R.")
    wrong("a call without a tuple", "ccollections\nOrderedDict\nK\1R.")
    wrong("a reference that is no storage", "K\1Q.")
    wrong("the state of an object of kind table", "}}b.")
    wrong("it is Python's collections.OrderedDict", "ccollections\nOrderedDict\n.")
    wrong("it is a storage, which has no form in Lua", STORAGE .. ".", { ["0"] = ("\0"):rep(8) })
  end)

  it("shows no more memory than its storages have", function()
    wrong("the bytes of storage '0' are missing", rebuilt "K\0K\1\133K\1\133")
    wrong("storage '0' has 1 elements; expected 2", rebuilt "K\0K\1\133K\1\133", { ["0"] = ("\0"):rep(4) })
    wrong("which is no number of float32 elements", rebuilt "K\0K\1\133K\1\133", { ["0"] = ("\0"):rep(7) })
    local two = { ["0"] = ("\0"):rep(8) }
    wrong("sizes [3] at strides [1] from element 0 on do not fit memory of 2 elements",
      rebuilt "K\0K\3\133K\1\133", two)
    wrong("do not fit memory", rebuilt "K\2K\1\133K\1\133", two)
    wrong("do not fit memory", rebuilt "K\0K\2\133J\255\255\255\127\133", two)
    wrong("the arguments of torch._utils._rebuild_tensor_v2 are none",
      rebuilt "K\0J\255\255\255\255\133K\1\133", two)
    wrong("too many elements", rebuilt "K\0(\138\6\0\0\0\0\0\1\138\6\0\0\0\0\0\1t(K\0K\0t", two)
    archive("\128\2" .. rebuilt "K\0K\2\133K\1\133", two)
    assert.same({ 0, 0 }, utils.load(path):totable())
  end)

  it("survives thousands of changes, and holds no memory", function()
    disk.write(path, disk.from_hex(reference.values[2]))
    local zip, text = core._zip_open(path, "load"), nil
    for i, name in ipairs(zip:names()) do
      if name:find("data.pkl$") then text = zip:text(i) end
    end
    zip:close()
    local storage = core.ones(6)
    local refusals = fuzz.damage(path, text, function(file)
      local f = io.open(file, "rb")
      local damaged = f:read("*a")
      f:close()
      return pickle.read(damaged, ("load: '%s'"):format(file), {
        storage = function(_, key)
          if #key ~= 1 then error(file .. ": no such storage", 0) end
          return storage
        end,
        tensor = function(t, offset, shape, strides)
          local ok, view = pcall(t._window, t, shape, strides, offset)
          return ok and view or error(file .. ": " .. tostring(view), 0)
        end,
        parameter = function(t) return t end,
      })
    end, { every = 2, rounds = 2000 })
    assert.is_true(refusals > 1000, refusals)
  end)
end)

describe("a damaged file", function()
  teardown(function() os.remove(path) end)

  it("is refused or gives a value, and holds no memory: no archive", function()
    local refusals = fuzz.damage(path, disk.from_hex(reference.legacy_values), utils.load,
      { every = 3, rounds = 1500 })
    assert.is_true(refusals > 1000, refusals)
  end)

  it("says what its storages lack, where it is no archive", function()
    local bytes = disk.from_hex(reference.legacy)
    refused("the bytes of storage", disk.to_hex(bytes:sub(1, -2)))
    refused("the bytes of storage", disk.to_hex(bytes:sub(1, -9)))
    refused("has 2 elements; expected 1",
      disk.to_hex(bytes:sub(1, -13) .. "\2\0\0\0\0\0\0\0" .. bytes:sub(-4)))
    refused("protocol 1000 of torch.save; known is 1001",
      disk.to_hex((bytes:gsub("\128\2M\233\3", "\128\2M\232\3", 1))))
    refused("nothing uses its storage 'x'", disk.to_hex(bytes:sub(1, #bytes - 12):gsub("%]q.*$", "") ..
      "](X\1\0\0\0xe." .. bytes:sub(-12)))
  end)

  for _, ending in ipairs { "safetensors", "pt" } do
    it("is refused or gives a value, and holds no memory: " .. ending, function()
      local base = core.arange(6, { dtype = "float32" }):view(2, 3)
      local file = path .. "." .. ending
      utils.save({ base = base, row = base[2], list = { 1, 0.5, "text", "\255", true, { [7] = 1 / 0 } } },
        file)
      local f = io.open(file, "rb")
      local bytes = f:read("*a")
      f:close()
      local refusals = fuzz.damage(file, bytes, utils.load, { every = 3, rounds = 1500 })
      assert.is_true(refusals > 1000, refusals)
      os.remove(file)
    end)
  end

  it("is found in an archive's tensors of any length, wherever the byte is", function()
    local file = path .. ".pt"
    -- past the caches from a megabyte on, by threads from 4
    for _, n in ipairs { 262143, 262144, 300001, 2500001 } do
      local x = core.arange(n, { dtype = "int32" })
      utils.save({ x = x, y = x:narrow(1, 3, n - 5):to("uint8") }, file)
      local read = utils.load(file)
      assert.is_true(tensor.equal(x, read.x))
      assert.is_true(tensor.equal(x:narrow(1, 3, n - 5):to("uint8"), read.y))
      local f = io.open(file, "rb")
      local bytes = f:read("*a")
      f:close()
      local first = bytes:find("\0\0\0\0\1\0\0\0\2\0\0\0", 1, true) -- 0, 1, 2
      for _, at in ipairs { 1, 63, 64, 65, 128, 2 * n, 4 * n - 15, 4 * n } do
        local k = first + at - 1
        disk.write(file, bytes:sub(1, k - 1) .. string.char((bytes:byte(k) + 16) % 256) .. bytes:sub(k + 1))
        local ok, err = pcall(utils.load, file)
        assert.is_false(ok)
        assert.matches("is damaged: its checksum is %x+, expected %x+", err)
      end
    end
    os.remove(file)
  end)

  -- A safetensors file with this structure.
  local function structured(text, structure)
    core.safetensors_save(path, { { "x", core.ones(2) }, { "b", core.zeros(2) } }, { structure = structure })
    local ok, err = pcall(utils.load, path)
    assert.is_false(ok)
    assert.truthy(err:find(text, 1, true), err)
    assert.truthy(err:find(path, 1, true), err)
  end

  it("names what is wrong with its structure", function()
    structured("its structure is damaged: json: ", "{")
    structured("nested too deep", ("["):rep(1000))
    structured("it is no object", "1")
    structured("version nil; known is 1", "{}")
    structured("it has no tables", '{"version":1}')
    structured("it: tables is no list", '{"version":1,"tables":{"a":1},"tensors":[]}')
    local function wrong_value(text, value, tables, tensors)
      structured(text, ('{"version":1,"tables":[%s],"tensors":[%s],"value":%s}'):format(tables or "", tensors
        or "", value))
    end
    wrong_value("the value is missing", "null")
    wrong_value("the value names table 0, which there is not", '{"table":0}')
    wrong_value("the value names no table", '{"table":1e300}')
    wrong_value("the value names no tensor", '{"tensor":-1}')
    wrong_value("tensor 0 has no name", '{"tensor":0}')
    wrong_value("has no tensor 'y'", '{"tensor":0}', "", '{"name":"y"}')
    wrong_value("do not fit memory of 2 elements", '{"tensor":0}', "",
      '{"name":"x","shape":[3],"strides":[1],"offset":0}')
    wrong_value("expected as many strides", '{"tensor":0}', "",
      '{"name":"x","shape":[1],"strides":[],"offset":0}')
    wrong_value("is damaged", '{"tensor":0}', "", '{"name":"x","shape":"a"}')
    wrong_value("the value is no value", '{"number":"one"}')
    wrong_value("the value is no value", "[]")
    wrong_value("the value are float32; expected uint8", '{"bytes":"b"}')
    wrong_value("table 0 has no keys", '{"table":0}', "{}")
    wrong_value("table 0 has 1 keys and 0 values", '{"table":0}', '{"keys":["a"],"values":[]}')
    wrong_value("table 0 has the key 'a' twice", '{"table":0}', '{"keys":["a","a"],"values":[1,2]}')
    wrong_value("table 0 has a key that is none", '{"table":0}', '{"keys":[{"number":"nan"}],"values":[1]}')
    wrong_value("table 0 is missing", '{"table":0}', '{"list":[null,1]}')
  end)

  it("is named when it is none of ours", function()
    local function other(text, bytes)
      disk.write(path, bytes)
      local ok, err = pcall(utils.load, path)
      assert.is_false(ok)
      assert.truthy(err:find(text, 1, true), err)
    end
    other("the file has 0 bytes", "")
    other("not a zip archive, or cut off", "PK\3\4")
    core._zip_write(path, { { "x.npy", "bytes" } }, "save")
    local ok, err = pcall(utils.load, path)
    assert.is_false(ok)
    assert.truthy(err:find("without data.pkl is no file of torch.save (data.read_npz", 1, true), err)
    assert.is_false(pcall(utils.load, "/nowhere/x"))
    assert.is_false(pcall(utils.load, "/"))
  end)
end)
