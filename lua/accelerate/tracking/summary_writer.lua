--- SummaryWriter: TensorBoard's event files.
---
---   local writer = tracking.SummaryWriter("runs/one")
---   writer:add_scalar("loss", 0.5, 1)
---   writer:add_histogram("weights", model.weight, { global_step = 1 })
---   writer:close()
---
--- A file is a row of records (tensorflow/core/lib/io/record_writer.h): the length in 8 bytes, its
--- masked CRC-32C, the data, and the data's masked CRC-32C. The data is an Event message
--- (tensorboard/compat/proto/event.proto, summary.proto). Comments below give its field numbers.
local builtin = require "accelerate.tracking.builtin"
local core = require "accelerate.core"
local ffi = require "ffi"
local file = require "accelerate.tracking.file"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local pb = require "accelerate.tracking.protobuf"
local png = require "accelerate.plot.png"
local class = require "accelerate.utils.class"
local values = require "accelerate.tracking.values"

local fail = options.fail

---@class accelerate.SummaryWriter
local SummaryWriter = class("SummaryWriter")

local function record(data)
  local length = pb.uint64_bytes(#data)
  return length .. pb.uint32_bytes(pb.masked_crc32c(length)) .. data ..
    pb.uint32_bytes(pb.masked_crc32c(data))
end

-- Event: wall_time 1, step 2, file_version 3, summary 5.
local function event(wall_time, step, rest)
  return pb.double(1, wall_time) .. (step and step ~= 0 and pb.int(2, step) or "") .. rest
end

-- Summary: value 1.  Value: tag 1, simple_value 2, image 4, histo 5, tensor 8, metadata 9.
local function summary(tag, content) return pb.bytes(5, pb.bytes(1, pb.bytes(1, tag) .. content)) end

-- SummaryMetadata: plugin_data 1 (plugin_name 1, content 2).
local function metadata(plugin, content)
  return pb.bytes(9, pb.bytes(1, pb.bytes(1, plugin) .. (content and pb.bytes(2, content) or "")))
end

local files = 0  -- number made by this process, so that two within a second differ

local OPTIONS = {
  filename_suffix = { "string", default = "" }, flush_secs = { "number", default = 120, min = 0 },
  max_queue = { "integer", default = 10, min = 1 }, purge_step = { "integer", optional = true },
  comment = { "string", default = "" },
}

--- Makes `log_dir` if it is missing, and a new event file in it.
---@param log_dir string
---@param opts { filename_suffix: string?, flush_secs: number?, max_queue: integer?, purge_step:
---  integer? }? flush_secs: longest time before events are written, in seconds; max_queue: largest
---  number of events that wait; purge_step: the step at which a run restarts; TensorBoard hides
---  what the earlier run logged from there on
function SummaryWriter:init(log_dir, opts)
  options.value("SummaryWriter", "log_dir", log_dir, { "string" })
  self._opts = options.check("SummaryWriter", opts, OPTIONS)
  self.log_dir = log_dir .. self._opts.comment
  self._queue, self._since, self._others = {}, nil, {}
  file.make_dirs(self.log_dir)
  files = files + 1
  local now = file.now()
  self._file = file.open(("%s/events.out.tfevents.%d.%s.%d.%d%s"):format(self.log_dir, now, file.hostname(),
    file.pid(), files - 1,
    self._opts.filename_suffix), { new = true })
  self:_put(event(now, nil, pb.bytes(3, "brain.Event:2")))
  -- SessionLog: START
  if self._opts.purge_step then self:_put(event(now, self._opts.purge_step, pb.bytes(7, pb.int(1, 1)))) end
  self:flush()
end

function SummaryWriter:_put(data)
  if not self._file then fail("SummaryWriter: %s is closed", self.log_dir) end
  local queue, now = self._queue, file.now()
  queue[#queue + 1] = record(data)
  self._since = self._since or now
  if #queue >= self._opts.max_queue or now - self._since >= self._opts.flush_secs then self:flush() end
end

--- Writes the waiting events.
function SummaryWriter:flush()
  local queue = self._queue
  self._queue, self._since = {}, nil
  if #queue > 0 then self._file:write(table.concat(queue)) end
  for _, key in ipairs(ordered.keys(self._others)) do self._others[key]:flush() end
end

--- Writes the waiting events and closes the file.
function SummaryWriter:close()
  if not self._file then return end
  self:flush()
  self._file:close()
  self._file = nil
  for _, key in ipairs(ordered.keys(self._others)) do self._others[key]:close() end
end

local CALL = { global_step = { "integer", optional = true }, walltime = { "number", optional = true } }
local schemas = {}

--- Checks the options of a call; a number is the step. `more`: the call's own options.
local function read(where, tag, opts, more)
  options.value("SummaryWriter:" .. where, "tag", tag, { "string" })
  if type(opts) == "number" then opts = { global_step = opts } end
  local schema = schemas[where]
  if not schema then
    schema = { global_step = CALL.global_step, walltime = CALL.walltime }
    for key, entry in next, more or {} do schema[key] = entry end  -- order does not matter: keys are distinct
    schemas[where] = schema
  end
  return options.check("SummaryWriter:" .. where, opts, schema)
end

local function number_of(where, value)
  local plain = values.plain(value)
  if type(plain) == "boolean" then plain = plain and 1 or 0 end
  if type(plain) ~= "number" then
    fail("SummaryWriter:%s: expected a number or a tensor of one element, got %s", where, options.show(value))
  end
  return plain
end

function SummaryWriter:_add(opts, tag, content)
  self:_put(event(opts.walltime or file.now(), opts.global_step, summary(tag, content)))
end

--- Adds a number to a curve, rounded to float32. NaN and the infinities are kept.
---@param tag string
---@param value number|accelerate.Tensor
---@param opts { global_step: integer?, walltime: number? }|integer|nil
function SummaryWriter:add_scalar(tag, value, opts)
  self:_add(read("add_scalar", tag, opts), tag, pb.float(2, number_of("add_scalar", value)))
end

--- Adds numbers to the curves of one chart. Each curve has its own event file, in a folder named
--- after the chart and the curve.
---@param main_tag string
---@param map table<string, number|accelerate.Tensor>
function SummaryWriter:add_scalars(main_tag, map, opts)
  opts = read("add_scalars", main_tag, opts)
  builtin.values("SummaryWriter:add_scalars", map)
  for _, key in ipairs(ordered.keys(map)) do
    local dir = ("%s/%s_%s"):format(self.log_dir, (main_tag:gsub("/", "_")), tostring(key))
    self._others[dir] = self._others[dir]
      or SummaryWriter(dir, { flush_secs = self._opts.flush_secs, max_queue = self._opts.max_queue })
    self._others[dir]:add_scalar(main_tag, map[key],
      { global_step = opts.global_step, walltime = opts.walltime })
  end
end

--- Adds a text, shown as Markdown.
---@param tag string
---@param text string
function SummaryWriter:add_text(tag, text, opts)
  opts = read("add_text", tag, opts)
  options.value("SummaryWriter:add_text", "text", text, { "string" })
  -- TensorProto: dtype 1 (DT_STRING 7), tensor_shape 2 (dim 2 (size 1)), string_val 8
  local content = pb.bytes(8, pb.int(1, 7) .. pb.bytes(2, pb.bytes(2, pb.int(1, 1))) .. pb.bytes(8, text))
  self:_add(opts, tag .. "/text_summary", content .. metadata("text"))
end

-- Image: height 1, width 2, colorspace 3 (1 grey, 2 grey and alpha, 3 RGB, 4 RGBA),
-- encoded_image_string 4.
local function image(bytes, size)
  return pb.bytes(4, pb.int(1, size[1]) .. pb.int(2, size[2]) .. pb.int(3, size[3]) .. pb.bytes(4, bytes))
end

local IMAGE = { dataformats = { "string", optional = true } }

--- Adds a picture. Floating-point values are 0 to 1, integers 0 to 255.
---@param tag string
---@param picture accelerate.Tensor [C, H, W] or [H, W], or as in dataformats; C is 1 to 4
---@param opts { global_step: integer?, walltime: number?, dataformats: string? }|integer|nil
function SummaryWriter:add_image(tag, picture, opts)
  opts = read("add_image", tag, opts, IMAGE)
  local bytes, sizes = png.files("SummaryWriter:add_image", picture, opts.dataformats)
  if #bytes ~= 1 then
    fail("SummaryWriter:add_image: %d pictures were given; add_images takes several", #bytes)
  end
  self:_add(opts, tag, image(bytes[1], sizes[1]))
end

--- Adds pictures; several go under `tag/1` and so on.
---@param tag string
---@param pictures accelerate.Tensor|accelerate.Tensor[] [N, C, H, W], or as in dataformats, or a
---  list of pictures
---@param opts { global_step: integer?, walltime: number?, dataformats: string? }|integer|nil
function SummaryWriter:add_images(tag, pictures, opts)
  opts = read("add_images", tag, opts, IMAGE)
  local bytes, sizes = png.files("SummaryWriter:add_images", pictures, opts.dataformats)
  for i = 1, #bytes do
    self:_add(opts, #bytes > 1 and ("%s/%d"):format(tag, i) or tag, image(bytes[i], sizes[i]))
  end
end

-- ---- histograms

-- TensorFlow's limits: 1e-12, then each 1.1 times the one before, for both signs, and the largest
-- double
local limits

local function make_limits()
  local up, v = {}, 1e-12
  while v < 1e20 do
    up[#up + 1] = v
    v = v * 1.1
  end
  limits = {}
  for i = #up, 1, -1 do limits[#limits + 1] = -up[i] end
  limits[#limits + 1] = 0
  for i = 1, #up do limits[#limits + 1] = up[i] end
  limits[#limits + 1] = 1.7976931348623157e308
end

--- Returns the position of the first limit above x.
local function bucket_of(x)
  if x >= limits[#limits - 1] then return #limits end
  local low, high = 1, #limits
  while low < high do
    local middle = math.floor((low + high) / 2)
    if limits[middle] > x then high = middle else low = middle + 1 end
  end
  return low
end

-- Counts elements and their sums; `data` is a const double pointer. NaN and the infinities belong
-- to no bucket and are counted apart.
local function count(data, n, buckets)
  local least, most, total, squares, odd = math.huge, -math.huge, 0, 0, 0
  for i = 0, n - 1 do
    local x = data[i]
    if x - x ~= 0 then
      odd = odd + 1
    else
      if x < least then least = x end
      if x > most then most = x end
      total, squares = total + x, squares + x * x
      local at = bucket_of(x)
      buckets[at] = (buckets[at] or 0) + 1
    end
  end
  return least, most, total, squares, odd
end

--- Adds a histogram of all elements in TensorBoard's own buckets. Elements that are not finite are
--- left out.
---@param tag string
---@param x accelerate.Tensor|number[]
---@param opts { global_step: integer?, walltime: number? }|integer|nil
function SummaryWriter:add_histogram(tag, x, opts)
  opts = read("add_histogram", tag, opts)
  if type(x) == "table" and getmetatable(x) == nil and #x > 0 then
    x = core.tensor(x, { dtype = "float64" })
  end
  if not core.is_tensor(x) then
    fail("SummaryWriter:add_histogram: expected a tensor or a list of numbers that is not empty, got %s",
      options.show(x))
  end
  if x:numel() == 0 then fail("SummaryWriter:add_histogram: the tensor has no elements") end
  if not limits then make_limits() end
  local flat = x:detach():to("cpu"):to("float64"):reshape(-1):contiguous()
  local buckets = {}
  local least, most, total, squares, odd = count(ffi.cast("const double *", flat:data_ptr()), flat:numel(),
    buckets)
  local kept = flat:numel() - odd
  if kept == 0 then least, most = 0, 0 end
  local first, last = bucket_of(least), bucket_of(most)
  local ends, counts = {}, {}
  for at = math.max(first - 1, 1), last do  -- an empty bucket before the first one gives its lower limit
    ends[#ends + 1], counts[#counts + 1] = limits[at], buckets[at] or 0
  end
  -- HistogramProto: min 1, max 2, num 3, sum 4, sum_squares 5, bucket_limit 6, bucket 7
  self:_add(opts, tag, pb.bytes(5, pb.double(1, least) .. pb.double(2, most) .. pb.double(3, kept) ..
    pb.double(4, total) ..
    pb.double(5, squares) .. pb.doubles(6, ends) .. pb.doubles(7, counts)))
end

-- ---- hyper-parameters (tensorboard/plugins/hparams/plugin_data.proto, api.proto)

-- google.protobuf.Value: number_value 2, string_value 3, bool_value 4.
local function value_message(value)
  if type(value) == "number" then return pb.double(2, value) end
  if type(value) == "boolean" then return pb.int(4, value and 1 or 0) end
  return pb.bytes(3, value)
end

local TYPES = { string = 1, boolean = 2, number = 3 }  -- DataType

--- Adds a run's settings and the results that belong to them, in a folder below log_dir.
--- TensorBoard compares such runs in its HPARAMS tab.
---@param hparams table<string, any> numbers, texts, booleans; nested tables become "outer/inner"
---@param metrics table<string, number>? results by the tags of their curves
---@param opts { run_name: string?, global_step: integer? }? run_name: the folder; default: seconds
---  since 1970
---@return string folder
function SummaryWriter:add_hparams(hparams, metrics, opts)
  hparams = builtin.settings("SummaryWriter:add_hparams: hparams", hparams)
  metrics = builtin.settings("SummaryWriter:add_hparams: metrics", metrics or {})
  opts = options.check("SummaryWriter:add_hparams", opts,
    { run_name = { "string", optional = true }, global_step = CALL.global_step })
  local now = file.now()
  local folder = ("%s/%s"):format(self.log_dir, opts.run_name or ("%.6f"):format(now))
  local infos, settings, results = {}, {}, {}
  for _, entry in ipairs(values.flat(hparams)) do
    local name, value = entry[1], entry[2]
    -- HParamInfo: name 1, type 4.  SessionStartInfo.hparams: a map, key 1 and value 2
    infos[#infos + 1] = pb.bytes(4, pb.bytes(1, name) .. pb.int(4, TYPES[type(value)]))
    settings[#settings + 1] = pb.bytes(1, pb.bytes(1, name) .. pb.bytes(2, value_message(value)))
  end
  for _, name in ipairs(ordered.keys(metrics)) do
    results[#results + 1] = pb.bytes(5, pb.bytes(1, pb.bytes(2, name)))  -- MetricInfo: name 1 (tag 2)
  end
  local writer = SummaryWriter(folder, { flush_secs = 0 })
  -- HParamsPluginData: version 1 (0), experiment 2, session_start_info 3, session_end_info 4
  -- (status 1: STATUS_SUCCESS 1, end_time_secs 2)
  local function put(tag, content)
    writer:_put(event(now, nil, summary(tag, metadata("hparams", content))))
  end
  put("_hparams_/experiment", pb.bytes(2, table.concat(infos) .. table.concat(results)))
  put("_hparams_/session_start_info", pb.bytes(3, table.concat(settings) .. pb.double(5, now)))
  put("_hparams_/session_end_info", pb.bytes(4, pb.int(1, 1) .. pb.double(2, now)))
  for _, name in ipairs(ordered.keys(metrics)) do writer:add_scalar(name, metrics[name], opts.global_step) end
  writer:close()
  return folder
end

return SummaryWriter
