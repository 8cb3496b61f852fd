-- Values that are cut over ranks in files, and read by any number of ranks.
local core = require "accelerate.core"
local files = require "accelerate.files"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local intervals = require "accelerate.checkpoint.intervals"
local messages = require "spec.support.messages"

local has, raises = messages.has, messages.raises

local folder
before_each(function()
  folder = host.free_path()
  assert(fs.make_dirs(folder))
end)
after_each(function() fs.remove_tree(folder) end)

local function bounds(numel, rank, ranks)
  local from = math.floor(numel * rank / ranks)
  return from, math.floor(numel * (rank + 1) / ranks) - from
end

-- Values of several dtypes and shapes, also a scalar and an empty one.
local function values()
  return {
    { name = "w", shape = { 5, 6 }, t = core.arange(30):to("float32") },
    { name = "half", shape = { 2, 3, 4 }, t = core.arange(24):to("bfloat16") },
    { name = "ids", shape = { 7 }, t = core.arange(7) },
    { name = "flags", shape = { 3 }, t = core.tensor { true, false, true } },
    { name = "one", shape = {}, t = core.tensor { 7.5 } },
    { name = "none", shape = { 0, 3 }, t = core.zeros(0) },
  }
end

local function write(ranks, path_of)
  for rank = 0, ranks - 1 do
    local list = {}
    for _, v in ipairs(values()) do
      local from, n = bounds(v.t:numel(), rank, ranks)
      list[#list + 1] = { name = v.name, shape = v.shape, from = from, tensor = v.t:narrow(1, from + 1, n) }
    end
    if path_of then intervals.write_file(path_of(rank), rank, list, { ranks = ranks })
    else intervals.write(folder, rank, list, { ranks = ranks }) end
  end
end

-- What `readers` ranks read, each its own part.
local function check(reader, readers)
  for _, v in ipairs(values()) do
    assert.same({ v.shape, v.t.dtype }, { reader:shape(v.name), reader:dtype(v.name) })
    for rank = 0, readers - 1 do
      local from, n = bounds(v.t:numel(), rank, readers)
      local part = reader:read(v.name, from, n)
      assert.equal(v.t.dtype, part.dtype)
      assert.same(v.t:narrow(1, from + 1, n):totable(), part:totable())
    end
  end
  reader:close()
end

local function piece(name, shape, from, list)
  return { name = name, shape = shape, from = from, tensor = core.tensor(list) }
end

describe("files of intervals", function()
  it("are written by any number of ranks and read by any other", function()
    for _, ranks in ipairs { 1, 2, 3, 8 } do
      fs.remove_tree(folder)
      assert(fs.make_dirs(folder))
      write(ranks)
      for _, readers in ipairs { 1, 2, 5 } do check(intervals.open(folder), readers) end
    end
  end)

  it("may be PyTorch's", function()
    local list = {}
    write(3, function(rank)
      list[rank + 1] = ("%s/model_rank%d.bin"):format(folder, rank)
      return list[rank + 1]
    end)
    check(intervals.open_files("load", folder, list), 2)
    assert.same({ 0, 1 }, files.load(list[1]).tensors["ids@0"]:totable())
  end)

  it("list the values in the order of writing", function()
    write(2)
    assert.same({ "w", "half", "ids", "flags", "one", "none" }, intervals.open(folder):names())
  end)

  it("are read into a tensor that is given, also of another dtype", function()
    write(2)
    local into = core.zeros({ 4 }, { dtype = "float64" })
    assert.equal(into, intervals.open(folder):read("w", 13, 4, into))
    assert.same({ 13, 14, 15, 16 }, into:totable())
  end)

  it("of which one is missing raise with value, range and rank", function()
    write(3)
    os.remove(folder .. "/intervals_1.safetensors")
    local reader = intervals.open(folder)
    assert.same({ 0, 1, 2 }, reader:read("w", 0, 3):totable())
    local message = raises("'w': no file has elements 10 to 19 of its 30", reader.read, reader, "w", 5, 20)
    has(message, folder .. "/intervals_0.safetensors has those before")
    has(message, "3 ranks wrote it, and the file of rank 1 is not there")
  end)

  it("may hold the same elements, if these are the same", function()
    intervals.write(folder, 0, { piece("w", { 4 }, 0, { 1, 2, 3 }) })
    intervals.write(folder, 1, { piece("w", { 4 }, 1, { 2, 3, 4 }) })
    assert.same({ 1, 2, 3, 4 }, intervals.open(folder):read("w"):totable())
    intervals.write(folder, 1, { piece("w", { 4 }, 1, { 2, 5, 4 }) })
    local reader = intervals.open(folder)
    raises("'w': elements 1 to 2 differ in " .. folder .. "/intervals_1.safetensors", reader.read, reader,
      "w")
    assert.same({ 4 }, reader:read("w", 3, 1):totable())
  end)

  it("that say different shapes or types of a value are refused", function()
    intervals.write(folder, 0, { piece("w", { 2, 2 }, 0, { 1, 2 }) })
    intervals.write(folder, 1, { piece("w", { 4 }, 2, { 3, 4 }) })
    local message = raises("'w' is float32 [2, 2] in", intervals.open, folder)
    has(message, "float32 [4] in " .. folder .. "/intervals_1.safetensors")
    intervals.write(folder, 1, { { name = "w", shape = { 2, 2 }, from = 2, tensor = core.arange(2) } })
    raises("and int64 [2, 2] in", intervals.open, folder)
  end)

  it("raise for elements that a value has not, and for names that there are not", function()
    write(1)
    local reader = intervals.open(folder)
    raises("'w' has 30 elements; asked for 3 from 28 on", reader.read, reader, "w", 28, 3)
    raises("asked for 1 from -1 on", reader.read, reader, "w", -1, 1)
    raises("there is no tensor 'haff'; did you mean 'half'?", reader.read, reader, "haff")
  end)

  it("are refused when they are written from what is no piece", function()
    raises("'w' has 4 elements; the piece has 3 from 2 on", intervals.write, folder, 0,
      { piece("w", { 4 }, 2, { 1, 2, 3 }) })
    raises("'w' is given twice", intervals.write, folder, 0,
      { piece("w", { 1 }, 0, { 1 }), piece("w", { 1 }, 0, { 1 }) })
    raises("a 1-d tensor", intervals.write, folder, 0,
      { { name = "w", shape = { 1, 1 }, from = 0, tensor = core.ones(1, 1) } })
  end)

  it("with damaged rows are refused by their path", function()
    local path, one = folder .. "/intervals_0.safetensors", { { "a", core.ones(2) } }
    for _, rows in ipairs { "{", "[]", '{"version": 2, "pieces": []}',
      '{"version": 1, "pieces": [{"key": "b", "name": "w", "shape": [2], "from": 0}]}',
      '{"version": 1, "pieces": [{"key": "a", "name": "w", "shape": [-2], "from": 0}]}',
      '{"version": 1, "pieces": [{"key": "a", "name": "w", "shape": [2], "from": 0.5}]}' } do
      core.safetensors_save(path, one, { intervals = rows })
      raises(path, intervals.open, folder)
    end
    core.safetensors_save(path, one,
      { intervals = '{"version": 1, "pieces": [{"key": "a", "name": "w", "shape": [2], "from": 1}]}' })
    raises("'w' in " .. path .. ": elements 1 to 2 lie outside its shape [2]", intervals.open, folder)
  end)
end)

describe("files of whole values", function()
  it("are read by intervals, in safetensors and in PyTorch's format", function()
    local w = core.arange(12):to("float32"):view(3, 4)
    core.safetensors_save(folder .. "/model.safetensors", { { "w", w } }, {})
    files.write({ w = w, turned = w:t() }, folder .. "/model.bin")
    for _, path in ipairs { folder, folder .. "/model.safetensors", folder .. "/model.bin" } do
      local reader = intervals.open(path)
      assert.same({ 3, 4 }, reader:shape "w")
      assert.same({ 5, 6, 7 }, reader:read("w", 5, 3):totable())
      reader:close()
    end
    assert.same({ 5, 9, 2 }, intervals.open(folder .. "/model.bin"):read("turned", 4, 3):totable())
  end)

  it("are read from the files of an index", function()
    core.safetensors_save(folder .. "/a.safetensors", { { "v", core.ones(2) } }, {})
    core.safetensors_save(folder .. "/b.safetensors", { { "w", core.arange(5) } }, {})
    assert(fs.write(folder .. "/model.safetensors.index.json",
      '{"weight_map": {"v": "a.safetensors", "w": "b.safetensors"}}'))
    local reader = intervals.open(folder)
    assert.same({ "v", "w" }, reader:names())
    assert.same({ 3, 4 }, reader:read("w", 3, 2):totable())
  end)

  it("raise for what is no tensor, and where there is nothing", function()
    files.write({ w = core.ones(2), epoch = 3 }, folder .. "/model.bin")
    raises("'epoch' in " .. folder .. "/model.bin is 3", intervals.open, folder .. "/model.bin")
    raises("load: there is no file or directory", intervals.open, folder .. "/nothing")
    raises("load: " .. folder .. " holds neither", intervals.open, folder)
  end)
end)
