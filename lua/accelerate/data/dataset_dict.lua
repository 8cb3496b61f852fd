--- Several named datasets ("train", "test") handled as one, and reading them from files.
local class = require "accelerate.utils.class"
local dataset = require "accelerate.data.dataset"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail, show = options.fail, options.show

local M = {}

--- Datasets by name: `dict.train`, `dict["test"]`. map, filter, shuffle, remove_columns,
--- rename_column, rename_columns, select_columns, with_format, with_transform and set_format apply
--- to all of them.
---@class accelerate.DatasetDict
local DatasetDict = class("DatasetDict")
M.DatasetDict = DatasetDict

for _, name in ipairs { "map", "filter", "shuffle", "remove_columns", "rename_column", "rename_columns",
  "select_columns",
  "with_format", "with_transform" } do
  --- Applies the method to every dataset; see TableDataset.
  DatasetDict[name] = function(self, ...)
    local made = {}
    for _, split in ipairs(self:splits()) do
      if type(self[split][name]) ~= "function" then
        fail("%s: dataset '%s' (%s) has no %s", name, split, show(self[split]), name)
      end
      made[split] = self[split][name](self[split], ...)
    end
    return DatasetDict(made)
  end
end

---@param datasets table<string, table>
function DatasetDict:init(datasets)
  if type(datasets) ~= "table" or getmetatable(datasets) or next(datasets) == nil then
    fail("DatasetDict: expected a table of datasets by name, got %s", show(datasets))
  end
  for name, value in pairs(datasets) do
    if type(name) ~= "string" or DatasetDict[name] ~= nil then
      fail("DatasetDict: %s cannot name a dataset", show(name))
    end
    value = dataset.of("DatasetDict", value)
    if not dataset.is_map(value) and not dataset.is_stream(value) then
      fail("DatasetDict: '%s' must be a dataset, got %s", name, show(value))
    end
    self[name] = value
  end
end

--- `for name, dataset in pairs(dict) do` iterates in the order of names; `#dict` is the number of
--- datasets.
function DatasetDict:__pairs() return ordered.pairs(self) end
function DatasetDict:__len() return ordered.count(self) end

--- Returns the names, sorted.
---@return string[]
function DatasetDict:splits() return ordered.sorted_keys(self) end

function DatasetDict:set_format(...)
  for _, split in ipairs(self:splits()) do self[split]:set_format(...) end
end

--- Returns the number of samples of each dataset.
---@return table<string, integer>
function DatasetDict:num_rows()
  local counts = {}
  for _, split in ipairs(self:splits()) do counts[split] = self[split]:len() end
  return counts
end

function DatasetDict:__tostring()
  local lines = { "DatasetDict(" }
  for _, split in ipairs(self:splits()) do
    lines[#lines + 1] = ("  %s: %s"):format(split, tostring(self[split]))
  end
  lines[#lines + 1] = ")"
  return table.concat(lines, "\n")
end

-- ---- files

local READERS = {
  csv = function(path, given) return dataset.Dataset.from_csv(path, given) end,
  tsv = function(path, given)
    given.delimiter = given.delimiter or "\t"
    return dataset.Dataset.from_csv(path, given)
  end,
  json = function(path) return dataset.Dataset.from_json(path) end,
}

local function read_files(kind, files, given)
  if type(files) == "string" then files = { files } end
  if type(files) ~= "table" or #files == 0 then
    fail("load_dataset: data_files must be paths, got %s", show(files))
  end
  local parts = {}
  for k, path in ipairs(files) do
    local own = {}
    for name, value in pairs(given) do own[name] = value end
    parts[k] = READERS[kind](path, own)
  end
  if #parts == 1 then return parts[1] end
  return require("accelerate.data.table").concatenate(parts)
end

local HUB = "load_dataset: nothing is downloaded, so %s needs a folder: "

-- A task of GLUE: its name stands where options stand for other kinds.
local function load_glue(task, given)
  if type(task) ~= "string" then
    fail(HUB .. 'load_dataset("glue", "sst2", { data_dir = "FOLDER" })', "'glue'")
  end
  local glue = require "accelerate.data.glue"
  local folder = glue.folder_of(task)
  if not given.data_dir then
    fail(HUB .. "unpack %s.zip of gluebenchmark.com/tasks into FOLDER, so that " ..
      'FOLDER/%s/train.tsv is there, and write load_dataset("glue", "%s", { data_dir = "FOLDER" })',
      ("'glue', '%s'"):format(task), folder,
      folder, task)
  end
  options.check("load_dataset", given, { data_dir = { "string" }, split = { "string", optional = true } })
  return glue.load_glue(task, given.data_dir, { split = given.split })
end

local KINDS = { "csv", "tsv", "json", "imagefolder", "glue" }
local CLASSES = { fashion_mnist = "FashionMNIST", cifar10 = "CIFAR10",
  cifar100 = "CIFAR100" }

-- A name that is no kind: that of a dataset at Hugging Face, or a misspelt kind.
local function refuse_kind(kind)
  if CLASSES[kind] then
    fail('load_dataset: nothing is downloaded, and %s is a class of its own: data.%s { root = "FOLDER" }',
      show(kind), CLASSES[kind])
  end
  fail("load_dataset: there is no kind %s of files%s (nothing is downloaded: where " ..
    "Python's datasets has it, load_dataset(...)[\"train\"].to_json(\"train.jsonl\") writes a file, and " ..
    'load_dataset("json", { data_files = { train = "train.jsonl" } }) reads it)', show(kind),
    options.hint(kind, KINDS))
end

--- Reads a dataset from local files; nothing is downloaded.
---
---   local dict = data.load_dataset("csv",     -- a DatasetDict
---     { data_files = { train = "train.csv", test = "test.csv" } })
---   local train = data.load_dataset("csv",    -- one dataset
---     { data_files = "all.csv", split = "train" })
---   local pictures = data.load_dataset("imagefolder", { data_dir = "pictures" })
---   local sst2 = data.load_dataset("glue", "sst2", { data_dir = "glue_data" })
---
--- Kinds: csv, tsv, json (JSON Lines or a list), imagefolder (with its folders train, test, … if
--- it has them), glue (with the task's name, as data.load_glue). Further options go to the reader.
---@param kind "csv"|"tsv"|"json"|"imagefolder"|"glue"
---@param opts { data_files: string|string[]|table<string, string|string[]>|nil, data_dir: string?,
---  split: string? }|string|nil glue: the task's name
---@param glue_opts { data_dir: string, split: string? }?
---@return accelerate.DatasetDict|table
function M.load_dataset(kind, opts, glue_opts)
  local given = {}
  if kind == "glue" then return load_glue(opts, glue_opts or {}) end
  if type(opts) == "string" then
    if READERS[kind] then
      fail('load_dataset: write load_dataset("%s", { data_files = "%s" })', kind, opts)
    end
    refuse_kind(kind)
  end
  for name, value in pairs(opts or {}) do given[name] = value end
  local files, dir, split = given.data_files, given.data_dir, given.split
  given.data_files, given.data_dir, given.split = nil, nil, nil
  local found
  if kind == "imagefolder" then
    found = require("accelerate.data.image_folder").load(dir, given)
  elseif READERS[kind] then
    if files == nil then fail("load_dataset: '%s' needs data_files", kind) end
    found = {}
    if type(files) == "table" and #files == 0 then
      for _, name in ipairs(ordered.sorted_keys(files)) do
        found[name] = read_files(kind, files[name], given)
      end
    else
      found.train = read_files(kind, files, given)
    end
  elseif kind == "parquet" then
    fail("load_dataset: parquet files are not supported; write them as JSON Lines or CSV, with pandas: " ..
      "read_parquet(path).to_json(path, orient='records', lines=True)")
  else
    refuse_kind(kind)
  end
  local dict = DatasetDict(found)
  if not split then return dict end
  if not found[split] then
    fail("load_dataset: there is no split %s; there are: %s", show(split), table.concat(dict:splits(), ", "))
  end
  return found[split]
end

return M
