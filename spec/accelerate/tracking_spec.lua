-- Trackers: what they write, byte for byte where a tool of others reads it, and that none of them
-- ever stops training.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local ffi = require "ffi"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local ranks = require "spec.support.ranks"
local reference = require "spec.support.tracker_reference"
local state = require "accelerate.state"
local tensor = accelerate.tensor
local tracking = accelerate.tracking

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

local function names(folder)
  local list, pipe = {}, io.popen("cd '" .. folder .. "' && find . -type f | LC_ALL=C sort")
  for name in pipe:lines() do list[#list + 1] = name:sub(3) end
  pipe:close()
  return list
end

local function find(folder, pattern)
  local found = {}
  for _, name in ipairs(names(folder)) do
    if name:find(pattern) then found[#found + 1] = folder .. "/" .. name end
  end
  return found
end

local function hex(bytes) return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end)) end

--- Runs `body` with stderr in a file; returns what was written there.
local function told(body)
  local path, former = os.tmpname(), io.stderr
  io.stderr = assert(io.open(path, "w")) -- luacheck: ignore 122
  local ok, err = pcall(body)
  io.stderr:close()
  io.stderr = former -- luacheck: ignore 122
  local text = read(path)
  os.remove(path)
  if not ok then error(err, 0) end
  return text
end

--- An Accelerator of its own, in a fresh folder.
local function with(log_with, body, options)
  host.in_folder(function(folder)
    state.reset()
    options = options or {}
    options.log_with, options.project_dir = log_with, folder
    body(accelerate.Accelerator(options), folder)
    state.reset()
  end)
end

-- ---- readers of their own, to check the files with

local function u32(text, at)
  local a, b, c, d = text:byte(at, at + 3)
  return a + b * 256 + c * 65536 + d * 16777216
end

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

--- A message's fields: number -> list of values (numbers of varints, bytes of all else).
local function fields(message)
  local found, at = {}, 1
  local function varint()
    local value, scale = 0, 1
    repeat
      local byte = message:byte(at)
      value, scale, at = value + byte % 128 * scale, scale * 128, at + 1
    until byte < 128
    return value
  end
  while at <= #message do
    local key = varint()
    local kind = key % 8
    local value
    if kind == 0 then value = varint()
    else
      local n = kind == 1 and 8 or kind == 5 and 4 or varint()
      value, at = message:sub(at, at + n - 1), at + n
    end
    local number = math.floor(key / 8)
    found[number] = found[number] or {}
    table.insert(found[number], value)
  end
  return found
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
      local png = require "accelerate.utils.png"
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

--- The records of a .wandb file, with every block's framing and checksum checked.
local function wandb_records(text)
  local pb = require "accelerate.tracking.protobuf"
  local list, at, whole = {}, 8, nil
  while at <= #text do
    local left = 32768 - (at - 1) % 32768
    if left < 7 then
      assert(text:sub(at, at + left - 1) == ("\0"):rep(left))
      at = at + left
    end
    local n, kind = text:byte(at + 4) + 256 * text:byte(at + 5), text:byte(at + 6)
    local data = text:sub(at + 7, at + 6 + n)
    assert((at - 1) % 32768 + 7 + n <= 32768 and #data == n)
    assert(pb.crc32(text:sub(at + 6, at + 6) .. data) == u32(text, at))
    assert((whole == nil) == (kind == 1 or kind == 2))
    whole = (whole or "") .. data
    if kind == 1 or kind == 4 then list[#list + 1], whole = whole, nil end
    at = at + 7 + n
  end
  assert(whole == nil)
  return list
end

describe("wandb's offline run", function()
  it("is the log that wandb sync reads", function()
    with("wandb", function(accelerator, folder)
      accelerator:init_trackers("proj", {
        config = { lr = 0.5 },
          init_kwargs = { wandb = { dir = folder, id = "abcd1234", name = "one", tags = { "x" } } },
      })
      local said = told(function()
        accelerator:log({ loss = 1 }, { step = 1 })
        accelerator:log({ acc = 0.5 }, { step = 1 })               -- the same row
        accelerator:log({ loss = 0.5, m = { a = 0 / 0 } }, { step = 7 })
        accelerator:log({ long = ("x"):rep(70000) }, { step = 8 })  -- over three blocks
        accelerator:log({ back = 1 }, { step = 2 })
        accelerator:log({ back = 1 }, { step = 3 })
        accelerator:log({ after = 1 })                   -- completes step 8
        accelerator:log({ next = 1 })                    -- is step 9
      end)
      assert.are.equal(1, select(2, said:gsub("must not go back", "")))
      accelerator:get_tracker("wandb"):log_images({ img = tensor.rand(3, 2, 2) }, { step = 20 })
      accelerator:get_tracker("wandb"):log_table("tab", { columns = { "a" }, data = { { 1 } } })
      accelerator:end_training()
      local path = find(folder, "%.wandb$")[1]
      assert.truthy(path:find("/wandb/offline%-run%-%d+_%d+%-abcd1234/run%-abcd1234%.wandb$"))
      local text = read(path)
      assert.are.equal(reference.wandb_head, hex(text:sub(1, 7)))
      local rows, kinds = {}, {}
      for i, data in ipairs(wandb_records(text)) do
        local record = fields(data)
        assert.are.equal(i, record[1][1])
        assert.are.equal("abcd1234", fields(record[200][1])[1][1])
        for _, kind in ipairs { 2, 3, 5, 6, 17, 18, 21 } do
          if record[kind] then kinds[#kinds + 1] = kind end
        end
        if record[2] then
          local row = { _num = fields(fields(record[2][1])[2][1])[1][1] }
          for _, item in ipairs(fields(record[2][1])[1]) do
            local entry = fields(item)
            row[table.concat(entry[2], ".")] = entry[16][1]
          end
          rows[#rows + 1] = row
        end
        if record[17] then
          local run = fields(record[17][1])
          assert.are.same({ "abcd1234", "proj", "one", "x" }, { run[1][1], run[3][1], run[8][1], run[10][1] })
        end
      end
      assert.are.same({ 21, 17, 5, 2, 3, 2, 3, 2, 3, 2, 3, 6, 6, 2, 3, 18 }, kinds)
      assert.are.same({ 1, "1", "0.5", "1" }, { rows[1]._num, rows[1].loss, rows[1].acc, rows[1]._step })
      assert.are.same({ 7, "0.5", "NaN" }, { rows[2]._num, rows[2].loss, rows[2]["m.a"] })
      assert.are.equal(70002, #rows[3].long)
      assert.are.same({ 8, "1", 9, "1", 20 }, { rows[3]._num, rows[3].after, rows[4]._num, rows[4].next,
        rows[5]._num })
      local files = folder .. "/" .. path:match("(wandb/offline[^/]*)/") .. "/files/"
      local img, tab = json.decode(rows[5].img), json.decode(rows[5].tab)
      assert.are.equal("\137PNG", read(files .. img.filenames[1]):sub(1, 4))
      assert.are.equal(tab.sha256, core._sha256(read(files .. tab.path)))
      assert.are.same({ columns = { "a" }, data = { { 1 } } }, json.decode(read(files .. tab.path)))
    end)
  end)

  it("has records with wandb's own bytes", function()
    with("wandb", function(accelerator, folder)
      accelerator:init_trackers("proj", { init_kwargs = { wandb = { dir = folder, id = "abcd1234" } } })
      accelerator:log({ loss = 0.5, m = { a = 0 / 0 } }, { step = 7 })
      accelerator:end_training()
      local record = wandb_records(read(find(folder, "%.wandb$")[1]))[3]
      -- time and runtime are added to each row; the rest is as in the reference
      local message = fields(record)[2][1]
      local items = fields(message)[1]
      local wanted = fields(
        (reference.wandb_history:gsub("..", function(b) return string.char(tonumber(b, 16)) end)))
      local theirs = fields(wanted[2][1])
      assert.are.equal(hex(theirs[1][1]), hex(items[1]))
      assert.are.equal(hex(theirs[1][2]), hex(items[2]))
      assert.are.equal(hex(theirs[2][1]), hex(fields(message)[2][1]))
      assert.are.equal(hex(wanted[200][1]), hex(fields(record)[200][1]))
    end)
  end)

  it("is not made in wandb's mode 'disabled', and cannot be made online", function()
    with("wandb", function(accelerator, folder)
      accelerator:init_trackers("proj", { init_kwargs = { wandb = { dir = folder, mode = "disabled" } } })
      accelerator:log({ loss = 1 }, { step = 1 })
      accelerator:end_training()
      assert.are.same({}, names(folder))
    end)
    with("wandb", function(accelerator)
      assert.error_matches(function()
        accelerator:init_trackers("proj", { init_kwargs = { wandb = { mode = "online" } } })
      end,
        "WandBTracker: option 'mode' must be one of offline, disabled, got 'online'")
    end)
  end)
end)

describe("Comet's offline experiment", function()
  it("is the archive that comet upload takes", function()
    with("comet_ml", function(accelerator, folder)
      accelerator:init_trackers("proj", {
        config = { lr = 0.5, nested = { a = true, list = { 1, 2 } } },
        init_kwargs = { comet_ml = { offline_directory = folder, experiment_name = "one",
          workspace = "ws" } },
      })
      accelerator:log({ loss = 0.5, note = "hi", m = { a = 0 / 0 } },
        { step = 3, log_kwargs = { comet_ml = { epoch = 2 } } })
      accelerator:get_tracker("comet_ml"):log_images({ img = tensor.rand(3, 2, 2) }, { step = 4 })
      accelerator:get_tracker("comet_ml"):log_table("tab", { columns = { "a" }, data = { { 1 } } })
      accelerator:end_training()
      local list = names(folder)
      assert.are.equal(1, #list)
      assert.truthy(list[1]:find("^%x+%.zip$") and #list[1] == 36)
      local text, entries = read(folder .. "/" .. list[1]), {}
      local at = 1
      while text:sub(at, at + 3) == "PK\3\4" do  -- unpacked by zlib, through a gzip wrapping that zcat reads
        local crc, packed, size = u32(text, at + 14), u32(text, at + 18), u32(text, at + 22)
        local n = text:byte(at + 26) + 256 * text:byte(at + 27)
        local name, data = text:sub(at + 30, at + 29 + n), text:sub(at + 30 + n, at + 29 + n + packed)
        local path = folder .. "/x.gz"
        local f = assert(io.open(path, "wb"))
        f:write("\31\139\8\0\0\0\0\0\0\3", data, ffi.string(ffi.new("uint32_t[2]", crc, size), 8))
        f:close()
        local pipe = io.popen("gzip -dc '" .. path .. "'")
        entries[name] = pipe:read("*a")
        assert(pipe:close() and #entries[name] == size)
        entries[#entries + 1] = name
        at = at + 30 + n + packed
      end
      assert.are.equal("PK\1\2", text:sub(at, at + 3))
      assert.are.equal("PK\5\6", text:sub(-22, -19))
      assert.are.equal(#entries, text:byte(-12))
      local experiment = json.decode(entries["experiment.json"])
      assert.are.same({ "proj", "ws", list[1]:sub(1, 32), "create" },
        { experiment.project_name, experiment.workspace, experiment.offline_id, experiment.resume_strategy })
      assert.truthy(entries["experiment.json"]:find('"tags": []', 1, true))
      local messages = {}
      for line in entries["messages.json"]:gmatch("[^\n]+") do
        local message = assert(json.decode(line))
        messages[#messages + 1] = message
        assert.are.equal(#messages, message.payload.message_id)
        if message.type ~= "log_other" then assert.truthy(line:find('"step": ')) end
        message.payload.message_id, message.payload.local_timestamp = nil, nil
      end
      assert.are.same({ key = "Name", value = "one" }, messages[2].payload)
      assert.are.same({ param = { paramName = "lr", paramValue = 0.5, source = "manual" } },
        messages[3].payload)
      assert.are.same({ param = { paramName = "nested|a", paramValue = true, source = "manual" } },
        messages[4].payload)
      assert.are.same({ params = { paramName = "nested|list", paramValue = { 1, 2 }, source = "manual" } },
        messages[5].payload)
      assert.are.same({ metric = { metricName = "loss", metricValue = 0.5, step = 3, epoch = 2 } },
        messages[6].payload)
      assert.are.same({ metric = { metricName = "m_a", metricValue = "NaN", step = 3, epoch = 2 } },
        messages[7].payload)
      assert.are.same({ key = "note", value = "hi" }, messages[8].payload)
      assert.are.equal("\137PNG", entries[messages[9].payload.file_path]:sub(1, 4))
      assert.are.equal("a\n1\n", entries[messages[10].payload.file_path])
    end)
  end)
end)

describe("log_with", function()
  after_each(function() state.reset() end)

  it("takes a name, an object, a list of them, 'all'", function()
    local Mine = tracking.class("Mine")
    Mine.name, Mine.requires_logging_directory, Mine.tracker = "mine", false, {}
    local mine = Mine()
    assert.are.same({ "jsonl" }, tracking.filter_trackers("jsonl", "x"))
    assert.are.same({ "jsonl", "csv" },
      tracking.filter_trackers({ "jsonl", tracking.LoggerType.CSV, "jsonl" }, "x"))
    assert.are.equal(mine, tracking.filter_trackers(mine)[1])
    assert.are.same({}, tracking.filter_trackers(nil))
    assert.are.same({}, tracking.filter_trackers({}))
    local all = tracking.filter_trackers({ "jsonl", mine, "all" }, "x")
    assert.are.equal(mine, all[1])
    assert.are.same(tracking.get_available_trackers(), { unpack(all, 2) })
    assert.are.same({ "tensorboard", "wandb", "comet_ml", "jsonl", "csv" }, tracking.get_available_trackers())
    assert.are.equal("comet_ml", tracking.LoggerType.COMET_ML)
    with({ "csv", mine }, function(accelerator)
      assert.are.same({ "csv", mine }, accelerator.log_with)
      assert.are.same({}, accelerator.trackers)
      accelerator:init_trackers("p")
      assert.are.equal(2, #accelerator.trackers)
      assert.are.equal(mine, accelerator.trackers[2])
      accelerator:end_training()
      assert.are.same({}, accelerator.trackers)
    end)
    assert.are.same({}, accelerate.Accelerator({}).log_with)
  end)

  it("refuses unknown names, leaves out those that are not there, and wants a directory", function()
    assert.error_matches(function() tracking.filter_trackers("tensorbord", "x") end,
      "there is no tracker 'tensorbord', did you mean 'tensorboard'%?; choose between all, tensorboard, " ..
      "wandb")
    assert.error_matches(function() tracking.filter_trackers({ "csv", 5 }, "x") end,
      "entry 2 must be a name or a tracker, got 5")
    assert.error_matches(function() accelerate.Accelerator { log_with = "jsonl" } end,
      "the tracker 'jsonl' writes files and needs a place for them: give Accelerator a project_dir")
    local found
    local said = told(function() found = tracking.filter_trackers({ "aim", "csv" }, "x") end)
    assert.are.same({ "csv" }, found)
    assert.are.equal("accelerate: log_with: the tracker 'aim' is not available here and is left out; " ..
      "there are tensorboard, wandb, " ..
      "comet_ml, jsonl, csv\n", said)
    said = told(function() tracking.filter_trackers("mlflow") end)
    assert.truthy(said:find("no tracker is left", 1, true))
    for _, name in ipairs { "trackio", "aim", "mlflow", "clearml", "dvclive", "swanlab" } do
      told(function() assert.are.same({}, tracking.filter_trackers(name)) end)
    end
  end)

  it("finds registered classes by name, and says when one is replaced", function()
    local Mine = tracking.class("Registered")
    function Mine:init(run, given) self.tracker = { run = run, given = given } end
    assert.error_matches(function() tracking.register_tracker_class(Mine) end,
      "Registered.name must be a text that is not empty, got nil")
    Mine.name = "registered"
    assert.error_matches(function() tracking.register_tracker_class(Mine) end,
      "requires_logging_directory must be true or false")
    Mine.requires_logging_directory = false
    assert.error_matches(function() tracking.register_tracker_class({}) end,
      "expected a class derived from GeneralTracker")
    assert.are.equal("", told(function() tracking.register_tracker_class(Mine) end))
    assert.are.equal("", told(function() tracking.register_tracker_class(Mine) end))
    with("registered", function(accelerator)
      accelerator:init_trackers("proj", { init_kwargs = { registered = { depth = 3 } } })
      assert.are.same({ run = "proj", given = { depth = 3 } },
        accelerator:get_tracker("registered", { unwrap = true }))
    end)
    local Other = tracking.class("Other", Mine)
    Other.requires_logging_directory = true
    function Other:init(run, dir) self.tracker = { run, dir } end
    assert.are.equal("accelerate: register_tracker_class: the tracker 'registered' is replaced by Other\n",
      told(function() tracking.register_tracker_class(Other) end))
    with("registered", function(accelerator, folder)
      accelerator:init_trackers("proj")
      assert.are.same({ "proj", folder }, accelerator:get_tracker("registered").tracker)
    end)
  end)
end)

describe("a tracker of one's own", function()
  local function make(name)
    local Class = tracking.class(name or "Own")
    Class.name, Class.requires_logging_directory = "own", false
    function Class:init()
      self.tracker = { calls = {} }
      for _, method in ipairs { "start", "store_init_configuration", "log", "log_images", "finish" } do
        self[method] = function(this, values, opts)
          table.insert(this.tracker.calls, { method, values, opts })
        end
      end
    end
    return Class
  end

  it("must have name, requires_logging_directory and tracker", function()
    local Empty = tracking.class("Empty")
    assert.error_matches(Empty, "Empty: the tracker lacks `name`, `requires_logging_directory`, `tracker`")
    Empty.name = "empty"
    Empty.requires_logging_directory = false
    assert.error_matches(Empty, "Empty: the tracker lacks `tracker`")
    function Empty:tracker() return self.inner end
    function Empty:init() self.inner = 5 end
    with(Empty(), function(accelerator)
      accelerator:init_trackers("p")
      assert.are.equal(5, accelerator:get_tracker("empty", { unwrap = true }))
      for _, method in ipairs { "start", "store_init_configuration", "log", "log_images", "log_table",
        "finish" } do
        accelerator:get_tracker("empty")[method](accelerator:get_tracker("empty"), {}, {})
      end
    end)
    assert.error_matches(function() tracking.class("X", {}) end,
      "the base of 'X' must be a class of trackers")
    assert.error_matches(function() tracking.class() end, "expected a name, got nil")
    assert.is_true(tracking.GeneralTracker.main_process_only)
  end)

  it("is called in order, with the step and its own options", function()
    local own = make()()
    with(own, function(accelerator)
      accelerator:init_trackers("p", { config = { lr = 1 } })
      accelerator:log({ loss = 2 }, { step = 3, log_kwargs = { own = { extra = "x" } } })
      accelerator:log({ loss = 2 }, { step = 4 })
      accelerator:log({ loss = 2 })
      accelerator:init_trackers("p")  -- again: nothing is started twice
      accelerator:end_training()
      accelerator:end_training()
      accelerator:log({ loss = 5 }, { step = 5 })
      assert.are.same({
        { "start" }, { "store_init_configuration", { lr = 1 } },
          { "log", { loss = 2 }, { step = 3, extra = "x" } },
        { "log", { loss = 2 }, { step = 4 } }, { "log", { loss = 2 }, {} }, { "finish" },
      }, own.tracker.calls)
    end)
  end)

  it("that raises is told about once and left out; training goes on, and so do the others", function()
    local calls, Bad = 0, make("Bad")
    local good = make()()
    good.name = "good"
    local bad = Bad()
    bad.log = function()
      calls = calls + 1
      error("boom")
    end
    with({ bad, good }, function(accelerator)
      local said = told(function()
        accelerator:init_trackers("p")
        for step = 1, 3 do accelerator:log({ loss = 1 }, { step = step }) end
        assert.are.equal(1, #accelerator.trackers)
        accelerator:get_tracker("own"):log({ loss = 1 })  -- a blank one
        accelerator:end_training()
      end)
      assert.are.equal(1, calls)
      assert.are.equal(1, select(2, said:gsub("\n", "")))
      assert.truthy(said:find("accelerate: tracker 'own' failed in log and is left out from here on; " ..
        "training goes on: .*boom"))
      assert.are.equal(5, #good.tracker.calls)
    end)
  end)
end)

describe("a tracker that the world fails", function()
  for _, name in ipairs { "tensorboard", "jsonl", "csv", "wandb", "comet_ml" } do
    it(name .. ": a directory that is gone, and one that cannot be made, are told once and end it", function()
      local place = { wandb = "dir", comet_ml = "offline_directory" }
      with(name, function(accelerator, folder)
        accelerator:init_trackers("proj",
          { init_kwargs = { [name] = place[name] and { [place[name]] = folder } } })
        local tracker = accelerator:get_tracker(name)
        accelerator:log({ loss = 1 }, { step = 1 })
        os.execute("rm -rf '" .. folder .. "'/*")
        local said = told(function()
          for step = 2, 9 do accelerator:log({ loss = 1 }, { step = step }) end
          tracker:log({ loss = 1 }, { step = 20 })
          accelerator:end_training()
        end)
        assert.are.equal(1, select(2, said:gsub("\n", "")), said)
        assert.truthy(said:find("tracker '" .. name ..
          "' failed and is left out from here on; training goes on: ", 1, true), said)
      end)
      with(name, function(accelerator, folder)
        local f = assert(io.open(folder .. "/proj", "w"))  -- a file where the folder is to be
        f:close()
        local said = told(function()
          accelerator:init_trackers("proj", { config = { lr = 1 },
            init_kwargs = { [name] = place[name] and { [place[name]] = folder .. "/proj" } } })
          accelerator:log({ loss = 1 }, { step = 1 })
          accelerator:end_training()
        end)
        assert.are.equal(1, select(2, said:gsub("\n", "")), said)
        assert.truthy(said:find("cannot make the directory", 1, true)
          or said:find("is not a directory", 1, true), said)
      end)
    end)
  end

  it("a full disk is one line on stderr", function()
    with("jsonl", function(accelerator, folder)
      os.execute(("mkdir '%s/proj' && ln -s /dev/full '%s/proj/metrics.jsonl'"):format(folder, folder))
      local said = told(function()
        accelerator:init_trackers("proj")
        for step = 1, 5 do accelerator:log({ loss = 1 }, { step = step }) end
        accelerator:end_training()
      end)
      assert.are.equal(1, select(2, said:gsub("\n", "")), said)
      assert.truthy(said:find("cannot write to .*metrics.jsonl: No space left on device"), said)
    end)
  end)
end)

describe("accelerator:log and its kin", function()
  after_each(function() state.reset() end)

  it("name what is wrong with a call", function()
    with("jsonl", function(accelerator)
      assert.error_matches(function() accelerator:init_trackers() end, "project_name is missing")
      assert.error_matches(function() accelerator:init_trackers("p", { configs = {} }) end,
        "did you mean 'config'")
      assert.error_matches(function() accelerator:init_trackers("p", { init_kwargs = { json = {} } }) end,
        "'json' is none of this Accelerator's trackers %(log_with%); did you mean 'jsonl'%?")
      assert.error_matches(function()
        accelerator:init_trackers("p", { init_kwargs = { jsonl = { filename = "x" } } })
      end,
        "unknown option 'filename'; did you mean 'file_name'")
      accelerator:init_trackers("p")
      assert.error_matches(function() accelerator:log(5) end,
        "values must be a table of values by name, got 5")
      assert.error_matches(function() accelerator:log({ loss = 1 }, { stp = 1 }) end, "did you mean 'step'")
      assert.error_matches(function() accelerator:log({ loss = 1 }, { step = 1.5 }) end,
        "option 'step' must be an integer, got 1.5")
      assert.error_matches(function()
        accelerator:log({ loss = 1 }, { log_kwargs = { jsonl = { sted = 1 } } })
      end, "did you mean 'step'")
      assert.error_matches(function() accelerator:get_tracker() end, "name is missing")
      assert.error_matches(function() accelerator:get_tracker("jsonll") end, "did you mean 'jsonl'")
    end)
  end)

  it("leave out what no tracker can keep, and say so once", function()
    with("jsonl", function(accelerator, folder)
      accelerator:init_trackers("proj")
      local said = told(function()
        for step = 1, 3 do
          accelerator:log({ loss = 1, weird_one = print, big = tensor.zeros(3) }, { step = step })
        end
      end)
      assert.are.equal(1, select(2, said:gsub("'weird_one' is no number", "")))
      assert.are.equal(1, select(2, said:gsub("'big' is no number", "")))
      accelerator:end_training()
      local _, lines = read(folder .. "/proj/metrics.jsonl"):gsub("\n", "")
      assert.are.equal(3, lines)
    end)
  end)

  it("give a blank tracker before init_trackers, whose methods do nothing", function()
    with("jsonl", function(accelerator)
      local blank = accelerator:get_tracker("jsonl")
      blank:log({ loss = 1 }, { step = 1 })
      blank:anything_at_all()
      accelerator:get_tracker("jsonl", { unwrap = true }):add_scalar("x", 1)
    end)
    accelerate.Accelerator():get_tracker("whatever"):finish()
  end)

  it("write on the main process only, unless the tracker says otherwise", function()
    host.in_folder(function(folder)
      ranks.ok(2, [[
        local tracking = accelerate.tracking
        local Each = tracking.class("Each")
        Each.name, Each.requires_logging_directory, Each.main_process_only = "each", false, false
        function Each:init() self.tracker = {} end
        function Each:log(values, opts) self.tracker[#self.tracker + 1] = values.loss + opts.step end
        local One = tracking.class("One", Each)
        One.name, One.main_process_only = "one", true
        local each, one, direct = Each(), One(), nil
        local accelerator = accelerate.Accelerator { log_with = { "jsonl", "wandb", each, one },
          project_dir = arg[1] }
        accelerator:init_trackers("proj", { init_kwargs = { wandb = { dir = arg[1] } } })
        accelerator:log({ loss = 10 * rank }, { step = 1 })
        accelerator:get_tracker("jsonl"):log({ direct = rank }, { step = 2 })
        check(#accelerator.trackers == (rank == 0 and 4 or 1), "trackers")
        check(#each.tracker == 1 and each.tracker[1] == 10 * rank + 1, "each")
        check(#one.tracker == (rank == 0 and 1 or 0), "one")
        check(not pcall(accelerator.get_tracker, accelerator, "nobody"), "an unknown name")
        accelerator:end_training()
      ]], { arguments = { folder } })
      local text = read(folder .. "/proj/metrics.jsonl")
      assert.are.equal(2, select(2, text:gsub("\n", "")))
      assert.truthy(text:find('"direct": 0', 1, true) and text:find('"loss": 0', 1, true))
      assert.are.equal(1, #find(folder, "%.wandb$"))
    end)
  end)
end)

describe("tracking, logging and the profiler", function()
  it("take every type of value, or refuse it with a message of their own", function()
    host.in_folder(function(folder)
      local pipe = io.popen("pwd")
      local here = pipe:read("*l")
      pipe:close()
      local status, out, err = host.run({ here .. "/spec/support/fuzz_around.lua", "." }, { folder = folder })
      assert.are.equal(0, status, err)
      assert.truthy(out:find("^%d%d%d%d calls, 0 wrong\n$"), out)
    end)
  end)
end)
