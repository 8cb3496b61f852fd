-- PyTorch's distributed checkpoints. from_torch is what spec/support/check_sharded_files.py has
-- PyTorch and Accelerate write; the script has them load what is written here, too.
local boxes = require "accelerate.checkpoint.boxes"
local core = require "accelerate.core"
local dcp = require "accelerate.checkpoint.dcp"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local intervals = require "accelerate.checkpoint.intervals"
local messages = require "spec.support.messages"
local metadata = require "accelerate.checkpoint.dcp_metadata"
local torch = require "accelerate.files.torch"

local has, raises = messages.has, messages.raises
local FROM_TORCH = "spec/sharded_files/from_torch"

local folder
local function with_folder()
  before_each(function()
    folder = host.free_path()
    assert(fs.make_dirs(folder))
  end)
  after_each(function() fs.remove_tree(folder) end)
end

local function same_by_parts(reader, name, expected, readers)
  local flat = expected:reshape { -1 }
  for rank = 0, readers - 1 do
    local from = math.floor(flat:numel() * rank / readers)
    local n = math.floor(flat:numel() * (rank + 1) / readers) - from
    assert.same(flat:narrow(1, from + 1, n):totable(), reader:read(name, from, n):totable())
  end
end

describe("a distributed checkpoint of PyTorch's", function()
  it("that Accelerate saved on two ranks of FSDP2 is read by any number", function()
    local expected, seen = core.safetensors_open(FROM_TORCH .. "/expected.safetensors"), 0
    for _, name in ipairs { "pytorch_model_fsdp_0", "optimizer_0" } do
      local reader = intervals.open(FROM_TORCH .. "/" .. name)
      for _, key in ipairs(reader:names()) do
        local t = expected:get_tensor(key)
        assert.same({ t.shape, t.dtype }, { reader:shape(key), reader:dtype(key) })
        for readers = 1, 4 do same_by_parts(reader, key, t, readers) end
        seen = seen + 1
      end
    end
    assert.equal(#expected:keys(), seen)
  end)

  it("has the optimizer's settings beside the tensors", function()
    local reader = intervals.open(FROM_TORCH .. "/optimizer_0")
    assert.equal(0.01, reader:object "optimizer.param_groups.0.lr")
    assert.same({ 0.9, 0.999 }, reader:object "optimizer.param_groups.0.betas")
    assert.same({ "0.weight", "0.bias", "1.weight", "1.bias" },
      reader:object "optimizer.param_groups.0.params")
    assert.is_nil(reader:object "optimizer.param_groups.0.fused")
    assert.same({ "optimizer", "param_groups", 0, "lr" }, reader:path_of "optimizer.param_groups.0.lr")
    assert.same({ "optimizer", "state", "0.weight", "exp_avg" },
      reader:path_of "optimizer.state.0.weight.exp_avg")
    raises("there is no object 'optimizer.param_groups.0.lrs'; did you mean", reader.object, reader,
      "optimizer.param_groups.0.lrs")
  end)

  it("may be cut along several dims, by rows and columns", function()
    local reader = intervals.open(FROM_TORCH .. "/grid")
    for readers = 1, 7 do
      same_by_parts(reader, "cut", core.arange(35):to("float32"), readers)
      same_by_parts(reader, "columns", core.arange(35):to("float16"), readers)
      same_by_parts(reader, "deep", core.arange(24), readers)
    end
    assert.same({ { 0, 3 }, { 1, 4 }, { 2, 5 } }, reader:tensor("turned"):totable())
    assert.equal(7.5, reader:tensor("scalar"):item())
    assert.same({ 0, 3 }, reader:tensor("empty").shape)
    assert.same({ "as it is", 3, 12 },
      { reader:object "note.text", reader:object "note.list.2.x", reader:object "steps" })
  end)
end)

describe("a written distributed checkpoint", function()
  with_folder()

  local function values(rank, ranks)
    local list = {}
    for i, shape in ipairs { { 5, 6 }, { 2, 3, 4 }, { 7 }, {}, { 0, 3 }, { 3, 2, 2, 3 } } do
      local t, cut = core.arange(boxes.count(shape)):to(i == 2 and "bfloat16" or "float32"), {}
      for r = 0, ranks - 1 do
        local from = math.floor(t:numel() * r / ranks)
        cut[r] = { from = from, n = math.floor(t:numel() * (r + 1) / ranks) - from }
      end
      list[i] = { name = "model.v" .. i, dtype = t.dtype, shape = shape, cut = cut,
        tensor = t:narrow(1, cut[rank].from + 1, cut[rank].n) }
    end
    list[#list + 1] = { name = "model.note", value = { 1, { a = "b" } } }
    list[#list + 1] = { name = "model.none", path = { "model", "none" } }
    return list
  end

  it("is read back, whatever numbers of ranks write and read", function()
    for _, ranks in ipairs { 1, 2, 3, 5 } do
      for rank = 0, ranks - 1 do dcp.write(folder, rank, ranks, values(rank, ranks)) end
      local reader = intervals.open(folder)
      for _, v in ipairs(values(0, 1)) do
        for readers = 1, v.dtype and 4 or 0 do
          assert.same(v.shape, reader:shape(v.name))
          same_by_parts(reader, v.name, v.tensor, readers)
        end
      end
      assert.same({ 1, { a = "b" } }, reader:object "model.note")
      assert.is_nil(reader:object "model.none")
      assert.same({ "model", "v1" }, reader:path_of "model.v1")
    end
  end)

  it("has archives that begin at multiples of 64 bytes, so that elements are aligned", function()
    for rank = 0, 1 do dcp.write(folder, rank, 2, values(rank, 2)) end
    for _, entry in ipairs(metadata.read(folder .. "/.metadata", "load")) do
      for _, chunk in ipairs(entry.chunks or {}) do assert.equal(0, chunk.place.at % 64) end
    end
  end)

  it("is refused where a rank gives no elements for its run", function()
    local list = values(0, 2)
    list[1].tensor = nil
    raises("'model.v1' needs 15 elements of float32 on rank 0, got nil", dcp.write, folder, 0, 2, list)
  end)
end)

describe("a damaged distributed checkpoint", function()
  with_folder()

  local function entry(changes)
    local one = { name = "w", path = { "w" }, dtype = "float32", shape = { 2, 2 },
      chunks = { { offsets = { 0, 0 }, sizes = { 2, 2 },
      place = { file = "__0_0.distcp", at = 0, n = 10 } } } }
    for key, value in pairs(changes) do one[key] = value end
    return one
  end

  local function open(changes)
    assert(fs.write(folder .. "/.metadata", metadata.encode { entry(changes) }))
    return intervals.open(folder)
  end

  local function refused(text, changes)
    has(raises(text, open, changes), folder)
  end

  local function chunk(offsets, sizes, file)
    return { offsets = offsets, sizes = sizes, place = { file = file or "__0_0.distcp", at = 0, n = 10 } }
  end

  it("names value and file", function()
    refused("'w' must be in a file beside it, got '../x'", { chunks = { chunk({ 0, 0 }, { 2, 2 }, "../x") } })
    refused("elements of the box [2, 2] at [1, 0] lie outside its shape [2, 2]",
      { chunks = { chunk({ 1, 0 }, { 2, 2 }) } })
    refused("lie outside its shape [2, 2]", { chunks = { chunk({ 0 }, { 2 }) } })
    refused("must be at most 8 sizes", { shape = { 1, 1, 1, 1, 1, 1, 1, 1, 1 } })
  end)

  it("with a missing or a foreign file raises when that is read", function()
    local reader = open {}
    has(raises("'w' in " .. folder .. "/__0_0.distcp: ", reader.read, reader, "w"), "No such file")
    assert(fs.write(folder .. "/__0_0.distcp", "0123456789"))
    has(raises("'w' in " .. folder .. "/__0_0.distcp: ", reader.read, reader, "w"), "not a zip archive")
    dcp.write(folder, 0, 1,
      { { name = "w", dtype = "float32", shape = { 4 }, cut = { [0] = { from = 0, n = 4 } },
      tensor = core.ones(4) } })
    local n = metadata.read(folder .. "/.metadata", "load")[1].chunks[1].place.n
    reader = open { chunks = { { offsets = { 0, 0 }, sizes = { 2, 2 },
      place = { file = "__0_0.distcp", at = 0, n = n } } } }
    raises("byte 0 holds float32 [4]; .metadata says float32 [2, 2]", reader.read, reader, "w")
  end)

  -- A value of shape { 4, 4 } in boxes { offsets, sizes, elements }.
  local function in_boxes(...)
    local archives, chunks, at = {}, {}, 0
    for i, box in ipairs { ... } do
      archives[i] = torch.members_of_tensor("float32", box[2], #box[3], core.tensor(box[3]))
      local n = core._zip_length(archives[i])
      chunks[i] = { offsets = box[1], sizes = box[2], place = { file = "__0_0.distcp", at = at, n = n } }
      at = math.ceil((at + n) / 64) * 64
    end
    core._zips_write(folder .. "/__0_0.distcp", archives, "save")
    return open { shape = { 4, 4 }, chunks = chunks }
  end

  it("with a gap between boxes names the elements", function()
    local reader = in_boxes({ { 0, 0 }, { 4, 2 }, { 0, 1, 4, 5, 8, 9, 12, 13 } },
      { { 0, 2 }, { 2, 2 }, { 2, 3, 6, 7 } }, { { 3, 2 }, { 1, 2 }, { 14, 15 } })
    assert.same({ 3, 4, 5, 6, 7, 8, 9 }, reader:read("w", 3, 7):totable())
    raises("'w': no file has elements 10 to 11 of its 16", reader.read, reader, "w")
  end)

  it("with boxes that overlap is read where they agree", function()
    local reader = in_boxes({ { 0, 0 }, { 4, 3 }, { 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14 } },
      { { 0, 2 }, { 4, 2 }, { 2, 3, 6, 7, 10, 11, 0, 15 } })
    assert.same({ 0, 1, 2, 3, 4, 5, 6, 7 }, reader:read("w", 0, 8):totable())
    raises("'w': elements of the box [4, 2] at [0, 2] differ in " .. folder, reader.read, reader, "w")
  end)

  it("of types that there are not here raises for these only", function()
    local reader = open { dtype = "int8" }
    assert.equal("int8", reader:dtype "w")
    raises("'w' is a tensor of int8, which there are none of here", reader.read, reader, "w")
  end)

  it("that names one list many times is refused, not read as often", function()
    local entries = {}
    for i = 1, 300 do entries[i] = entry { name = "w" .. i } end
    local text = metadata.encode(entries)
    local one = text:match "%]%((.-ub)eub"
    local many = "](" .. one .. "q\200" .. ("h\200"):rep(300) .. "eq\201"
    local from, to = text:find("](" .. one .. "e", 1, true)
    local rest = text:sub(to + 1)
    local parts, at = { text:sub(1, from - 1), many }, 1
    while true do
      local first, last = rest:find("](" .. one .. "e", at, true)
      if not first then break end
      parts[#parts + 1] = rest:sub(at, first - 1) .. "h\201"
      at = last + 1
    end
    parts[#parts + 1] = rest:sub(at)
    assert(fs.write(folder .. "/.metadata", table.concat(parts)))
    raises("/.metadata': it says more than a file of ", intervals.open, folder)
  end)
end)
