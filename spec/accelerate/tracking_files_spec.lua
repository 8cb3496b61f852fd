-- TensorBoard's event files, byte for byte where TensorBoard reads them, and the trackers of lines.
local accelerate = require "accelerate"
local ffi = require "ffi"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local reference = require "spec.reference.tracker_reference"
local state = require "accelerate.state"
local trackers = require "spec.support.trackers"
local tensor = accelerate.tensor
local tracking = accelerate.tracking
local fields, find, hex, read, u32, with =
  trackers.fields, trackers.find, trackers.hex, trackers.read, trackers.u32, trackers.with

--- The data of a TFRecord file's records.
local function records(text)
  local list, at = {}, 1
  while at <= #text do
    local n = u32(text, at)
    assert(u32(text, at + 4) == 0)
    list[#list + 1] = text:sub(at + 12, at + 11 + n)
    at = at + 16 + n
  end
  assert(at == #text + 1)
  return list
end

local function double(bytes) return tonumber(ffi.cast("const double *", bytes)[0]) end
local function float(bytes) return tonumber(ffi.cast("const float *", bytes)[0]) end

--- { tag, step, value fields } of each summary in an event file.
local function summaries(path)
  local list = {}
  for _, data in ipairs(records(read(path))) do
    local event = fields(data)
    for _, summary in ipairs(event[5] or {}) do
      local value = fields(fields(summary)[1][1])
      list[#list + 1] = { tag = value[1][1], step = event[2] and event[2][1] or 0, value = value }
    end
  end
  return list
end

describe("checksums", function()
  local pb = require "accelerate.tracking.protobuf"

  it("are those of the published examples", function()
    assert.are.equal(0xE3069283, pb.crc32c("123456789"))
    assert.are.equal(0x8A9136AA, pb.crc32c(("\0"):rep(32)))
    assert.are.equal(0x62A8AB43, pb.crc32c(("\255"):rep(32)))
    assert.are.equal(0xCBF43926, pb.crc32("123456789"))
  end)

  it("and varints hold whole numbers of 64 bits", function()
    assert.are.equal("00", hex(pb.varint(0)))
    assert.are.equal("7f", hex(pb.varint(127)))
    assert.are.equal("ac02", hex(pb.varint(300)))
    assert.are.equal("ffffffffffffffffff01", hex(pb.varint(-1)))
    assert.are.equal("80808080808080808001", hex(pb.varint(-2 ^ 63)))
    assert.are.equal("8080808080808010", hex(pb.varint(2 ^ 53)))
  end)
end)

describe("TensorBoard's event files", function()
  it("hold the bytes that TensorBoard's own writer makes", function()
    host.in_folder(function(folder)
      local writer = tracking.SummaryWriter(folder)
      local function last(name)
        writer:flush()
        local text = read(find(folder, "^events")[1])
        local wanted = reference[name]
        assert.are.equal(wanted, hex(text:sub(-#wanted / 2)), name)
      end
      writer:add_scalar("loss", 0.1, { global_step = 3, walltime = 1.5 })
      last "scalar"
      writer:add_scalar("loss", math.huge, { global_step = -3, walltime = 1.5 })
      last "negative_step"
      writer:add_text("note", "hello", { global_step = 300, walltime = 1.5 })
      last "text"
      writer:close()
      local first = read(find(folder, "^events")[1])
      assert.are.equal(#reference.version / 2, 12 + u32(first, 1) + 4)
      -- the length and its checksum
      assert.are.equal(reference.version:sub(1, 24), hex(first:sub(1, 12)))
      -- what follows the time
      assert.are.equal(reference.version:sub(43, -9), hex(first:sub(22, 12 + u32(first, 1))))
    end)
  end)

  it("tell of hyper-parameters as TensorBoard's plugin does", function()
    host.in_folder(function(folder)
      local file = require "accelerate.tracking.file"
      local now = file.now
      file.now = function() return 1.5 end
      local ok, err = pcall(function()
        local writer = tracking.SummaryWriter(folder)
        local inner = writer:add_hparams({ lr = 0.25, name = "x" }, { accuracy = 0.5 }, { run_name = "one" })
        writer:close()
        assert.are.equal(folder .. "/one", inner)
      end)
      file.now = now
      assert(ok, err)
      local text = hex(read(find(folder, "^one/events")[1]))
      local wanted = reference.version .. reference.hparams_experiment .. reference.hparams_start ..
        reference.hparams_end
      assert.are.equal(wanted, text:sub(1, #wanted))
    end)
  end)

  it("hold pictures as PNG, which reads back to the same pixels", function()
    host.in_folder(function(folder)
      local writer = tracking.SummaryWriter(folder)
      local x = tensor.rand(3, 4, 5)
      writer:add_image("one", x, 7)
      writer:add_images("many", tensor.arange(24):reshape(2, 3, 4, 1):to("uint8"), { dataformats = "NHWC" })
      writer:add_image("grey", tensor.tensor({ { 0, 2 }, { -1, 0 / 0 } }))
      writer:close()
      local list = summaries(find(folder, "^events")[1])
      assert.are.equal(4, #list)
      local image = fields(list[1].value[4][1])
      assert.are.same({ "one", 7, 4, 5, 3 },
        { list[1].tag, list[1].step, image[1][1], image[2][1], image[3][1] })
      assert.are.same({ "many/1", "many/2", "grey" }, { list[2].tag, list[3].tag, list[4].tag })
      assert.are.same((x * 255):round():to("uint8"):totable(),
        accelerate.data.decode_image(image[4][1]):totable())
      local grey = fields(list[4].value[4][1])[4][1]
      local png = require "accelerate.plot.png"
      assert.are.equal(grey,
        (png.encode(tensor.tensor({ { { 0 }, { 255 } }, { { 0 }, { 0 } } }, { dtype = "uint8" }))))
    end)
  end)

  it("hold histograms whose buckets have all finite elements", function()
    host.in_folder(function(folder)
      local writer = tracking.SummaryWriter(folder)
      writer:add_histogram("h", tensor.tensor({ -1, 0, 0, 0.5, 3, 0 / 0, math.huge }), 2)
      writer:add_histogram("list", { 1e300, -1e300 })
      writer:close()
      local list = summaries(find(folder, "^events")[1])
      local h = fields(list[1].value[5][1])
      assert.are.same({ -1, 3, 5, 2.5, 10.25 },
        { double(h[1][1]), double(h[2][1]), double(h[3][1]), double(h[4][1]), double(h[5][1]) })
      local limits, counts, total = h[6][1], h[7][1], 0
      assert.are.equal(#limits, #counts)
      local before = -math.huge
      for i = 0, #limits / 8 - 1 do
        local limit, n = ffi.cast("const double *", limits)[i], ffi.cast("const double *", counts)[i]
        assert(limit > before)
        local inside = 0
        for _, x in ipairs { -1, 0, 0, 0.5, 3 } do
          if x >= before and x < limit then inside = inside + 1 end
        end
        assert.are.equal(inside, n)
        total, before = total + n, limit
      end
      assert.are.equal(5, total)
      assert.are.equal(2, double(fields(list[2].value[5][1])[3][1]))
    end)
  end)

  it("come from accelerator:log: numbers, texts, maps, settings", function()
    with("tensorboard", function(accelerator, folder)
      accelerator:init_trackers("proj",
        { config = { lr = 1e-5, name = "yes", nested = { deep = { 1, 2 } } } })
      accelerator:log({ loss = 0.5, note = "hi", acc = tensor.tensor(0.25), on = true }, { step = 1 })
      accelerator:log({ loss = 0 / 0, pair = { a = 1, b = 2 } }, { step = 2 })
      local writer = accelerator:get_tracker("tensorboard", { unwrap = true })
      writer:add_histogram("weights", tensor.randn(10), 2)
      accelerator:get_tracker("tensorboard"):log_images({ digits = tensor.rand(2, 1, 3, 3) }, { step = 2 })
      accelerator:get_tracker("tensorboard"):log_table("rows", { columns = { "a" }, data = { { "x|y" } } })
      accelerator:end_training()
      local seen = {}
      for _, s in ipairs(summaries(find(folder .. "/proj", "^events")[1])) do
        seen[s.tag .. "@" .. s.step] = s.value
      end
      assert.are.equal(0.5, float(seen["loss@1"][2][1]))
      assert.are.equal(0.25, float(seen["acc@1"][2][1]))
      assert.are.equal(1, float(seen["on@1"][2][1]))
      assert(seen["note/text_summary@1"] and seen["digits/1@2"] and seen["digits/2@2"] and seen["weights@2"])
      assert.truthy(seen["rows/text_summary@0"][8][1]:find("| a |\n|---|\n| x\\|y |", 1, true))
      local nan = float(seen["loss@2"][2][1])
      assert(nan ~= nan)
      assert.are.equal(2, float(summaries(find(folder .. "/proj/pair_b", "^events")[1])[1].value[2][1]))
      assert.are.equal('lr: 1.0e-05\nname: "yes"\nnested:\n  deep:\n    - 1\n    - 2\n',
        read(find(folder, "hparams.yml$")[1]))
    end)
  end)
end)

describe("the trackers of lines", function()
  it("jsonl: one object a line, values that JSON lacks as texts", function()
    with("jsonl", function(accelerator, folder)
      accelerator:init_trackers("proj", { config = { lr = 0.5, list = { 1, 2 } } })
      accelerator:log({ loss = 0.5, note = 'a "b"\n', map = { x = 1 }, t = tensor.tensor({ 3 }) },
        { step = 1 })
      accelerator:log({ a = 0 / 0, b = math.huge, c = -math.huge, step = 9 }, { step = 2 })
      accelerator:log({ d = 1 })
      accelerator:get_tracker("jsonl"):log_images({ d = tensor.rand(2, 2) }, { step = 3 })
      accelerator:get_tracker("jsonl"):log_table("t", { columns = { "a", "b" }, data = { { 1, "x" } } })
      accelerator:end_training()
      local lines = {}
      for line in io.lines(folder .. "/proj/metrics.jsonl") do
        lines[#lines + 1] = assert(json.decode(line))
      end
      assert.are.same({ lr = 0.5, list = { 1, 2 } }, lines[1].config)
      assert(math.abs(lines[2].time - os.time()) < 100)
      lines[2].time = nil
      assert.are.same({ loss = 0.5, note = 'a "b"\n', map = { x = 1 }, t = 3, step = 1 }, lines[2])
      assert.are.same({ "NaN", "Infinity", "-Infinity", 9, 2 },
        { lines[3].a, lines[3].b, lines[3].c, lines[3].step, lines[3]._step })
      assert.is_nil(lines[4].step)
      assert.are.equal("\137PNG", read(folder .. "/proj/" .. lines[5].images.d[1]):sub(1, 4))
      assert.are.same({ { 1, "x" } }, lines[6].data)
    end)
  end)

  it("csv: columns as they come up, also in a file that is there already", function()
    with("csv", function(accelerator, folder)
      accelerator:init_trackers("proj", { config = { lr = 0.5 } })
      accelerator:log({ loss = 0.5, note = 'a "b",\nc' }, { step = 1 })
      accelerator:log({ loss = 0 / 0, ['odd, "name"'] = 2, m = { a = 1 } }, { step = 2 })
      accelerator:get_tracker("csv"):log_table("t/1", { columns = { "a", "b" }, data = { { 1, "x,y" } } })
      accelerator:end_training()
      state.reset()
      local again = accelerate.Accelerator { log_with = "csv", project_dir = folder }
      again:init_trackers("proj")
      again:log({ ['odd, "name"'] = 3, fresh = -math.huge }, { step = 3 })
      again:end_training()
      local text = read(folder .. "/proj/metrics.csv"):gsub("%d+%.%d+,",
        function(n) return #n > 12 and "T," or n end)
      assert.are.equal('step,time,loss,note,m/a,"odd, ""name""",fresh\n1,T,0.5,"a ' ..
        '""b"",\nc",,,\n2,T,nan,,1,2,\n3,T,,,,3,-inf\n', text)
      assert.are.equal('{"lr": 0.5}\n', read(folder .. "/proj/config.json"))
      assert.are.equal('a,b\n1,"x,y"\n', read(folder .. "/proj/t_1.csv"))
    end)
  end)
end)
