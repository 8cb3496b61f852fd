--- GLUE's tasks from their folders of TSV files.
local fs = require "accelerate.utils.fs"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local lists = require "accelerate.utils.lists"

local fail = options.fail

local M = {}

-- Of each task: fields of its samples, with the columns that hold them (names of the first line,
-- or numbers where there is none), the names of the labels (nil: numbers), the folder, the files of
-- validation and test where they differ.
local BINARY = { "0", "1" }
local ENTAILMENT = { "entailment", "not_entailment" }
local TASKS = {
  cola = { fields = { sentence = 4 }, test = { sentence = "sentence" }, label = 2, labels = BINARY,
    folder = "CoLA" },
  sst2 = { fields = { sentence = "sentence" }, label = "label", labels = BINARY, folder = "SST-2" },
  mrpc = { fields = { sentence1 = "#1 String", sentence2 = "#2 String" }, label = "Quality", labels = BINARY,
    folder = "MRPC" },
  qqp = { fields = { question1 = "question1", question2 = "question2" }, label = "is_duplicate",
    labels = BINARY, folder = "QQP", ragged = true },
  stsb = { fields = { sentence1 = "sentence1", sentence2 = "sentence2" }, label = "score", folder = "STS-B" },
  mnli = { fields = { premise = "sentence1", hypothesis = "sentence2" }, label = "gold_label",
    labels = { "entailment", "neutral", "contradiction" }, folder = "MNLI" },
  qnli = { fields = { question = "question", sentence = "sentence" }, label = "label", labels = ENTAILMENT,
    folder = "QNLI" },
  rte = { fields = { sentence1 = "sentence1", sentence2 = "sentence2" }, label = "label", labels = ENTAILMENT,
    folder = "RTE" },
  wnli = { fields = { sentence1 = "sentence1", sentence2 = "sentence2" }, label = "label", labels = BINARY,
    folder = "WNLI" },
}

local FILES = { train = "train.tsv", validation = "dev.tsv", test = "test.tsv" }
local MNLI_FILES = { validation_matched = "dev_matched.tsv", validation_mismatched = "dev_mismatched.tsv",
  test_matched = "test_matched.tsv", test_mismatched = "test_mismatched.tsv", train = "train.tsv" }

-- The numbers of the wanted columns, by field.
local function places_of(path, header, wanted)
  local places, by_name = {}, {}
  for i, name in ipairs(header or {}) do by_name[name:gsub("^\239\187\191", "")] = i end
  for field, column in pairs(wanted) do
    places[field] = type(column) == "number" and column or by_name[column]
    if not places[field] then
      fail("load_glue: '%s': line 1 has no column '%s'; it has %s", path, column, table.concat(header, ", "))
    end
  end
  return places
end

-- The label of a line as a number.
local function label_of(path, number, text, labels)
  if not labels then
    return tonumber(text) or fail("load_glue: '%s': line %d: the label '%s' is no number", path, number, text)
  end
  for i, name in ipairs(labels) do
    if name == text then return i - 1 end
  end
  fail("load_glue: '%s': line %d: the label '%s' is none of %s", path, number, text:sub(1, 40),
    table.concat(labels, ", "))
end

local function read(path, task, has_labels)
  local text, why = fs.read(path)
  if not text then fail("load_glue: %s", why) end
  local wanted, columns, number, rows = {}, { idx = {} }, 0, 0
  for field, column in pairs(not has_labels and task.test or task.fields) do wanted[field] = column end
  if has_labels then wanted.label = task.label end
  local headed = false
  for _, column in pairs(wanted) do headed = headed or type(column) == "string" end
  for field in pairs(wanted) do columns[field] = {} end
  local places, width
  for line in (text:gsub("\n$", "") .. "\n"):gmatch("(.-)\r?\n") do
    number = number + 1
    local fields = lists.fields(line)
    if not places then
      places, width = places_of(path, headed and fields or nil, wanted), 0
      for _, place in pairs(places) do width = math.max(width, place) end
    end
    if not (headed and number == 1) and line ~= "" then
      if #fields >= width then
        rows = rows + 1
        columns.idx[rows] = rows - 1
        for field, place in pairs(places) do
          local value = fields[place]
          if field == "label" then value = label_of(path, number, value, task.labels) end
          columns[field][rows] = value
        end
      elseif not task.ragged then
        fail("load_glue: '%s': line %d has %d fields; expected at least %d", path, number, #fields, width)
      end
    end
  end
  return require("accelerate.data.table").from_table(columns)
end

local OPTIONS = { split = { "string", optional = true } }

--- Returns the folder that GLUE has for a task: "SST-2".
---@param task string
---@return string
function M.folder_of(task)
  options.value("load_glue", "task", task, { "string", one_of = ordered.sorted_keys(TASKS) })
  return TASKS[task].folder
end

--- Reads a task of GLUE from the folder with its TSV files, as gluebenchmark.com packs them: one
--- dataset for each of train, validation and test that is there (MNLI: validation_matched and so
--- on). Samples have the fields of Hugging Face's `glue`: sentence, or a pair such as sentence1 and
--- sentence2; idx, from 0; and label, from 0 in the order of the task's names (a score for stsb),
--- but not in test. Nothing is downloaded.
---@param task "cola"|"sst2"|"mrpc"|"qqp"|"stsb"|"mnli"|"qnli"|"rte"|"wnli"
---@param folder string with the files, or with the folder that GLUE has for the task ("SST-2")
---@param opts { split: string? }? split: return this dataset alone
---@return accelerate.DatasetDict|accelerate.TableDataset
function M.load_glue(task, folder, opts)
  local names = ordered.sorted_keys(TASKS)
  options.value("load_glue", "task", task, { "string", one_of = names })
  options.value("load_glue", "folder", folder, { "string" })
  local o, known, found = options.check("load_glue", opts, OPTIONS), TASKS[task], {}
  local inner = fs.join(folder, known.folder)
  if fs.is_dir(inner) then folder = inner end
  for split, file in pairs(task == "mnli" and MNLI_FILES or FILES) do
    local path = fs.join(folder, file)
    if fs.exists(path) and (not o.split or o.split == split) then
      found[split] = read(path, known, not split:find "^test")
    end
  end
  if next(found) == nil then
    fail("load_glue: %s has no %s", folder, o.split and ("files of the split '%s'"):format(o.split)
      or "train.tsv, dev.tsv or test.tsv")
  end
  if o.split then return found[o.split] end
  return require("accelerate.data.dataset_dict").DatasetDict(found)
end

return M
