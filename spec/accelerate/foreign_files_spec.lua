-- Files of other programs: NumPy's values and lazy tensors of PyTorch's, types that tensors lack,
-- JSON that Python writes, pointers of Git LFS, pipes, and files that unpack to much more than they
-- are.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local data = require "accelerate.data"
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local messages = require "spec.support.messages"
local nn = require "accelerate.nn"
local pickle = require "accelerate.files.pickle"
local reference = require "spec.reference.numpy_reference"
local torch_files = require "spec.reference.saving_reference"
local utils = require "accelerate.utils"

local has, raises = messages.has, messages.raises

local path
local function with_path()
  before_each(function() path = host.free_path() end)
  after_each(function() os.remove(path) end)
end

local function load(name, opts)
  disk.write(path, disk.from_hex(reference[name]))
  return utils.load(path, opts)
end

describe("NumPy's values in torch files", function()
  with_path()

  it("are numbers, booleans, { re, im } and tensors", function()
    for _, name in ipairs { "plain", "legacy", "protocol5" } do
      local v = load(name)
      assert.same({ 0.5, 7, true, 1.5, { 1, 2 }, { 1, 2, 3 } },
        { v.best, v.n, v.flag, v.half, v.complex, v.deque })
      for key, expected in pairs { zero = { "float64", 3 },
        matrix = { "float32", { { 0, 1, 2 }, { 3, 4, 5 } } },
        fortran = { "int64", { { 0, 1, 2 }, { 3, 4, 5 } } }, big_endian = { "int32", { 1, 2 } },
        int8 = { "int32", { -1, 2 } }, uint16 = { "int32", { 65535 } }, uint32 = { "int64", { 2 ^ 32 - 1 } },
        bools = { "bool", { true, false } }, complexes = { "complex128", { { 1, 2 } } } } do
        assert.same(expected, { v[key].dtype, v[key]:totable() })
      end
      assert.same({ 0, 3 }, v.empty.shape)
      assert.equal(v.same[1], v.same[2])
    end
  end)

  it("of other types are refused by their place", function()
    for name, text in pairs { texts = "a is a NumPy array of type 'U2'",
      objects = "a is a NumPy array of type 'O8'",
      inexact = "a is the integer 9007199254740993", dtype = "a is a numpy.dtype" } do
      has(raises(text, load, name), path)
    end
    assert.same({}, (load("texts", { strict = false })))
  end)

  it("that are damaged are refused", function()
    local hooks = { storage = function() end, tensor = function() end, parameter = function() end }
    local function wrong(text, bytes)
      raises("where: " .. text, pickle.read, bytes, "where", hooks)
    end
    local dtype = "cnumpy\ndtype\nX\2\0\0\0f8\133R"
    local array = "cnumpy._core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\133C\1b\135R"
    wrong("a numpy.dtype without a type", "cnumpy\ndtype\nK\1\133R.")
    wrong("a scalar of NumPy's without a numpy.dtype", "cnumpy.core.multiarray\nscalar\nK\1C\1a\134R.")
    wrong("a NumPy scalar of type 'f8' with 1 bytes", "cnumpy.core.multiarray\nscalar\n" .. dtype ..
      "C\1a\134R.")
    wrong("the state of a numpy.ndarray is none", array .. "K\1b.")
    wrong("the state of a NumPy array is none", array .. "(K\1K\2" .. dtype .. "\137C\0tb.")
    wrong("a NumPy array of 2 elements of type 'f8' with 3 bytes", array .. "(K\1K\2\133" .. dtype ..
      "\137C\3abctb.")
    wrong("it is a numpy.ndarray, which has no form in Lua", array .. ".")
    wrong("bytes with arguments", "c__builtin__\nbytes\nK\1\133R.")
  end)
end)

describe("lazy tensors in torch files", function()
  with_path()

  it("are conjugated and negated", function()
    for _, name in ipairs { "lazy", "lazy_legacy" } do
      local v = load(name)
      assert.same({ { { 1, -2 } } }, v.conj:totable())
      assert.same({ { { 1, -2 } } }, v.adjoint:totable())
      assert.same({ { { 1, 2 } } }, v.plain:totable())
    end
    assert.same({ { -2 } }, load("negative").imag:totable())
  end)

  it("with a mark that is not known are refused", function()
    local hooks = { storage = function() return {} end, tensor = function() return core.ones(1) end,
      parameter = function() end }
    local function rebuilt(mark)
      return "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1" ..
        "\0\0\0000X\3\0\0\0cpu" ..
        "K\1tQK\0K\1\133K\1\133\137}}\140" .. string.char(#mark) .. mark .. "\136stR."
    end
    assert.same({ -1 }, pickle.read(rebuilt "neg", "where", hooks):totable())
    raises("where: a tensor with the mark conk, which is not known", pickle.read, rebuilt "conk", "where",
      hooks)
  end)
end)

describe("a torch file that unpacks to much more than it is", function()
  with_path()

  local function archive(...) core._zip_write(path, { ... }, "save") end

  it("is refused where its opcodes are too many for the file's size", function()
    local hooks = { storage = function() end, tensor = function() end, parameter = function() end }
    for _, code in ipairs { "]", "N", "(", "\128\2", "N2" } do
      raises("where: more than 1000 opcodes, which is too much for a file of its size", pickle.read,
        code:rep(1001), "where", hooks, nil, 1000)
    end
    assert.equal(1, pickle.read("K\1.", "where", hooks, nil, 2))
  end)

  it("is refused before it is unpacked", function()
    local fs = require "accelerate.utils.fs"
    archive { "a/data.pkl", "\128\2" .. ("]"):rep(998) }
    local bytes = assert(fs.read(path))
    local at = bytes:find("PK\1\2", 1, true) -- the directory says: deflated, and of 70 MB
    bytes = bytes:sub(1, at + 9) .. "\8\0" .. bytes:sub(at + 12, at + 23) .. "\128\29\44\4" ..
      bytes:sub(at + 28)
    disk.write(path, bytes)
    has(raises("'a/data.pkl' in it has 70000000 bytes, packed into 1000; a text may have 16 times as " ..
      "many and 64 MiB",
      utils.load, path), path)
  end)

  it("has one data.pkl", function()
    archive({ "a/data.pkl", "\128\2K\1." }, { "b/data.pkl", "\128\2K\2." })
    has(raises("it has two entries data.pkl, in the folders 'a' and 'b'", utils.load, path), path)
    archive { "a/data.pkl", "\128\2K\1." }
    assert.equal(1, utils.load(path))
  end)

  it("is read in time in proportion to it where it is no archive", function()
    local asked = {}
    local text = "X\0\0\64\0" .. ("a"):rep(2 ^ 22) .. "."
    local at = 0
    local r = pickle.stream(function(bytes)
      asked[#asked + 1] = bytes
      if at >= #text then return nil end
      local piece = text:sub(at + 1, at + bytes)
      at = at + bytes
      return piece
    end, "where")
    assert.equal(2 ^ 22, #r:value {})
    assert.is_true(#asked < 12, #asked .. " pieces")
  end)

  it("is read once where it is no archive", function()
    local stream, values = pickle.stream, {}
    pickle.stream = function(...) -- luacheck: ignore 122
      local r = stream(...)
      local value = r.value
      r.value = function(...)
        values[#values + 1] = value(...)
        return values[#values]
      end
      return r
    end
    disk.write(path, disk.from_hex(torch_files.legacy))
    local ok, found = pcall(utils.load, path)
    pickle.stream = stream -- luacheck: ignore 122
    assert.is_true(ok, found)
    assert.same({ 1 }, found.x:totable())
    assert.equal(4, #values) -- protocol, machine, value, keys
    assert.equal(found, values[3])
  end)

  it("leaves no garbage for the lengths of its texts", function()
    local n = 20000
    local text = "\128\2](" .. ("X\1\0\0\0a"):rep(n) .. "e."
    jit.off()
    collectgarbage()
    collectgarbage "stop"
    local before = collectgarbage "count"
    local list = pickle.read(text, "where", {})
    local made = (collectgarbage "count" - before) * 1024
    collectgarbage "restart"
    jit.on()
    assert.equal(n, #list)
    assert.is_true(made < 100 * n, made / n .. " bytes for each text")
  end)
end)

describe("a safetensors file with tensors of other types", function()
  with_path()

  before_each(function()
    local header = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"q":{"dtype":"I8","shape":[4],' ..
      '"data_offsets":[4,8]},"f4":{"dtype":"F4","shape":[4],"data_offsets":[8,10]},' ..
      '"new":{"dtype":"XY","shape":[3],"data_offsets":[10,16]}}'
    header = header .. (" "):rep(-#header % 8)
    disk.write(path, string.char(#header, 0, 0, 0, 0, 0, 0, 0) .. header .. "\0\0\192\63" .. ("\1"):rep(12))
  end)

  it("gives the others", function()
    assert.same({ 1.5 }, utils.load_safetensors(path, { keys = { "a" } }).a:totable())
    for _, read in ipairs { function() return utils.load(path, { strict = false }) end,
      function()
        local tensors, _, left = utils.load_safetensors(path, { strict = false })
        return tensors, left
      end } do
      local tensors, left = read()
      assert.same({ 1.5 }, tensors.a:totable())
      assert.same({ "q: a tensor of int8", "f4: a tensor of float4", "new: a tensor of XY" }, left)
    end
  end)

  it("lists them, and names the one that was asked for", function()
    local file = utils.safe_open(path)
    assert.same({ "a", "q", "f4", "new" }, file:keys())
    assert.same({ "float32", "int8", { 4 } }, { file:get_dtype "a", file:get_dtype "q", file:get_shape "q" })
    raises("tensor 'q' has dtype 'I8'; known are", file.get_tensor, file, "q")
    file:close()
    for _, fn in ipairs { utils.load, utils.load_safetensors } do
      has(raises("tensor 'q' has dtype 'I8'; known are", fn, path), "quantization_config")
    end
  end)

  it("does not keep a model from the tensors that it has", function()
    local model = nn.Module()
    model.a = nn.Parameter(core.zeros(1))
    local former = io.stderr
    -- luacheck: ignore 122
    io.stderr = { write = function() end }
    local ok, why = pcall(accelerate.load_checkpoint_in_model, model, path, { device_map = { [""] = "cpu" } })
    io.stderr = former -- luacheck: ignore 122
    assert(ok, why)
    assert.same({ 1.5 }, model.a:totable())
  end)
end)

describe("load_checkpoint_in_model's device_map", function()
  with_path()

  it("is one device for the whole model", function()
    local from, to = nn.Linear(2, 2), nn.Linear(2, 2)
    utils.save(from:state_dict(), path, { safe_serialization = true })
    accelerate.load_checkpoint_in_model(to, path, { strict = true,
      device_map = { [""] = accelerate.Accelerator { cpu = true }.device } })
    assert.same(from.weight:totable(), to.weight:totable())
    raises("option 'device_map' must be a table", accelerate.load_checkpoint_in_model, to, path,
      { device_map = "auto" })
    raises("device_map is empty", accelerate.load_checkpoint_in_model, to, path, { device_map = {} })
    raises("device_map gives 'weight' no device", accelerate.load_checkpoint_in_model, to, path,
      { device_map = { fc = "cpu" } })
    raises("device_map: expected the number of a GPU", accelerate.load_checkpoint_in_model, to, path,
      { device_map = { [""] = "cuda:99" } })
  end)
end)

describe("JSON that Python writes", function()
  with_path()

  local function read(text)
    disk.write(path, text)
    return data.read_json(path)
  end

  it("has NaN and infinities", function()
    local rows = read '{"x": NaN, "y": [Infinity]}\n{"x": -Infinity}\n'
    assert.is_true(rows[1].x ~= rows[1].x)
    assert.same({ 1 / 0, -1 / 0 }, { rows[1].y[1], rows[2].x })
    for _, text in ipairs { '{"x": nan}', '{"x": -NaN}', '{"x": Inf}', '{"x": +Infinity}' } do
      raises("expected a value", read, text)
    end
  end)

  it("is refused for integers that Lua's numbers do not hold", function()
    for _, word in ipairs { "9007199254740993", "-9007199254740993", "18446744073709551615" } do
      raises("line 2: " .. word .. ", an integer that Lua's numbers do not hold exactly", read,
        '{"id": 1}\n{"id": ' .. word .. "}\n")
    end
    local row = read('{"a": 9007199254740992, "b": -9007199254740992, ' ..
      '"c": 1000000000000000019884624838656}')[1]
    assert.same({ 2 ^ 53, -2 ^ 53, 1e30 }, { row.a, row.b, row.c })
  end)

  it("is one object on a line", function()
    raises("one object over several lines; expected one on each line, or a list of objects", read,
      '{\n  "a": 1\n}\n')
    raises("line 2: expected a key", read, '{"a": 1}\n{\n')
  end)
end)

describe("what is no file of values", function()
  with_path()

  it("is said where it is a pointer of Git LFS", function()
    disk.write(path, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    for _, fn in ipairs { utils.load, utils.load_safetensors, data.read_json,
      function(at) accelerate.load_checkpoint_in_model(nn.Linear(1, 1), at) end } do
      has(raises("it is a Git LFS pointer, not the file that it stands for", fn, path), path)
    end
  end)

  it("is not waited for where it is a pipe", function()
    os.execute("mkfifo " .. path)
    for _, fn in ipairs { utils.load, utils.load_safetensors,
      function(at) accelerate.load_checkpoint_in_model(nn.Linear(1, 1), at) end } do
      has(raises("not a regular file but a pipe", fn, path), path)
    end
  end)
end)
