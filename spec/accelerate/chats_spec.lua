-- lua/accelerate/tokenizers/chats.lua: apply_chat_template beside the template's language.
local disk = require "spec.support.disk"
local json = require "accelerate.utils.json"
local raises = require("spec.support.messages").raises
local tokenizers = require "accelerate.tokenizers"

local t = tokenizers.from_file "spec/reference/tokenizers/gpt2.json"
local HI = { { role = "user", content = "hi" } }
local PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if " ..
  "add_generation_prompt %}<a>{% endif %}"

local function apply(messages, opts)
  opts.tokenize = false
  return t:apply_chat_template(messages, opts)
end

-- Calls fn with a folder that has a tokenizer.json and these files.
local function with_folder(files, fn)
  local folder = os.tmpname()
  os.remove(folder)
  os.execute(("mkdir -p '%s/additional_chat_templates'"):format(folder))
  files["tokenizer.json"] = disk.read "spec/reference/tokenizers/gpt2.json"
  for name, text in pairs(files) do
    local file = assert(io.open(folder .. "/" .. name, "w"))
    file:write(text)
    file:close()
  end
  local ok, why = pcall(fn, folder)
  os.execute(("rm -r '%s'"):format(folder))
  if not ok then error(why, 0) end
end

describe("apply_chat_template", function()
  it("gives tools and documents to the template, none where there are none", function()
    local template = "{{ tools is none }}{{ documents is none }}{{ tools | length if tools }}{{ " ..
      "documents[0].title if documents }}"
    assert.equal("TrueTrue", apply(HI, { chat_template = template }))
    assert.equal("FalseFalse1T", apply(HI, { chat_template = template, tools = { { type = "function" } },
      documents = { { title = "T", text = "x" } } }))
  end)

  it("refuses functions as tools, and entries that are no tables with names", function()
    raises("tools[2] is a function; Lua functions cannot be turned into a JSON schema", apply, HI,
      { chat_template = "", tools = { {}, print } })
    raises("documents[1] must be a table with names, got 'x'", apply, HI,
      { chat_template = "", documents = { "x" } })
    raises("tools must be a list", apply, HI, { chat_template = "", tools = { type = "function" } })
    raises("messages[1] must be a table with names (one conversation at a time)", apply, { HI },
      { chat_template = "" })
    raises("the conversation is empty", apply, {}, { chat_template = "" })
  end)

  it("takes the named templates of tokenizer_config.json: tool_use with tools, else default", function()
    local config = json.encode { chat_template = { { name = "default", template = "D" },
      { name = "tool_use", template = "T{{ tools | length }}" }, { name = "rag", template = "R" } } }
    with_folder({ ["tokenizer_config.json"] = config }, function(folder)
      local named = tokenizers.from_pretrained(folder)
      assert.same({ default = "D", tool_use = "T{{ tools | length }}", rag = "R" }, named.chat_template)
      assert.equal("D", named:apply_chat_template(HI, { tokenize = false }))
      assert.equal("T1", named:apply_chat_template(HI, { tokenize = false, tools = { {} } }))
      assert.equal("R",
        named:apply_chat_template(HI, { tokenize = false, tools = { {} }, chat_template = "rag" }))
      assert.equal("x", named:apply_chat_template(HI, { tokenize = false, chat_template = "x" }))
      named:save_pretrained(folder)
      assert.same(named.chat_template, tokenizers.from_pretrained(folder).chat_template)
      named.chat_template = { rag = "R", other = "O" }
      raises("none is 'default'; give one of other, rag", named.apply_chat_template, named, HI)
    end)
  end)

  it("takes the templates of files before those of tokenizer_config.json", function()
    with_folder({ ["tokenizer_config.json"] = json.encode { chat_template = "C" },
      ["chat_template.jinja"] = "F",
      ["additional_chat_templates/tool_use.jinja"] = "T", ["additional_chat_templates/notes.txt"] = "-" },
      function(folder)
        assert.same({ default = "F", tool_use = "T" }, tokenizers.from_pretrained(folder).chat_template)
        os.remove(folder .. "/additional_chat_templates/tool_use.jinja")
        assert.equal("F", tokenizers.from_pretrained(folder).chat_template)
      end)
  end)

  it("names a template of tokenizer_config.json that has no text", function()
    with_folder({ ["tokenizer_config.json"] = json.encode { chat_template = { { name = "default" } } } },
      function(folder)
        raises("chat_template[1] must have a name and a template", tokenizers.from_pretrained, folder)
      end)
  end)

  it("saves a template that was assigned", function()
    with_folder({}, function(folder)
      local one = tokenizers.from_pretrained(folder)
      one.chat_template = "mine"
      one:save_pretrained(folder)
      assert.equal("mine", tokenizers.from_pretrained(folder).chat_template)
    end)
  end)

  it("ends where the last message ends with continue_final_message", function()
    local messages = { { role = "user", content = "hi" }, { role = "assistant", content = "I am " } }
    assert.equal("<user>hi</><assistant>I am ",
      apply(messages, { chat_template = PLAIN, continue_final_message = true }))
    assert.equal("<assistant>I am", apply(messages, { continue_final_message = true,
      chat_template = "{% for m in messages[1:] %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}" }))
    assert.same({ { role = "user", content = "hi" }, { role = "assistant", content = "I am " } }, messages)
    local blocks = { { role = "assistant",
      content = { { type = "text", text = "one" }, { type = "image" } } } }
    assert.equal("[one", apply(blocks, { continue_final_message = true,
      chat_template = "{% for c in messages[0].content %}[{{ c.text }}]{% endfor %}" }))
    assert.equal("(hm", apply({ { role = "assistant", content = "x", reasoning = "hm" } }, {
      continue_final_message = "reasoning",
      chat_template = "({{ messages[0].reasoning_content }}){{ messages[0].content }}" }))
  end)

  it("refuses continue_final_message where there is nothing to go on with", function()
    local function continued(messages, template, more)
      local opts = { chat_template = template, continue_final_message = true }
      for name, value in pairs(more or {}) do opts[name] = value end
      return apply(messages, opts)
    end
    raises("give one of them", continued, HI, PLAIN, { add_generation_prompt = true })
    raises("has no 'content' to go on with", continued, { { role = "assistant" } }, PLAIN)
    raises("the template does not read 'content'", continued, HI, "{{ messages[0].role }}")
    raises("is not in what the template writes", continued, HI, "{% if messages[0].content %}{% endif %}")
    raises("has no text to go on with", continued, { { role = "user", content = { { type = "image" } } } },
      PLAIN)
  end)

  it("marks the tokens of generation blocks", function()
    local template = "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}" ..
      "{{ m.content }}{% endgeneration %}{% else %}U:{{ m.content }}{% endif %};{% endfor %}"
    local messages = { { role = "user", content = "Größe?" },
      { role = "assistant", content = "one métre" },
      { role = "user", content = "b" }, { role = "assistant", content = "c" } }
    local opts = { chat_template = template, return_dict = true, return_assistant_tokens_mask = true }
    local row = t:apply_chat_template(messages, opts)
    local marked = {}
    for i, id in ipairs(row.input_ids) do
      if row.assistant_masks[i] == 1 then marked[#marked + 1] = id end
    end
    assert.equal("one métrec", t:decode(marked))
    assert.equal(#row.input_ids, #row.assistant_masks)
    assert.is_nil(row.offset_mapping)
    opts.return_tensors = true
    local tensors = t:apply_chat_template(messages, opts)
    assert.same({ row.assistant_masks }, tensors.assistant_masks:tolist())
    assert.same({ row.input_ids }, tensors.input_ids:tolist())
  end)

  it("gives what the tokenizer gives with return_dict, and refuses a mask without it", function()
    local row = t:apply_chat_template(HI, { chat_template = PLAIN, return_dict = true })
    assert.same(t:apply_chat_template(HI, { chat_template = PLAIN }), row.input_ids)
    assert.equal(#row.input_ids, #row.attention_mask)
    raises("needs return_dict = true and tokenize = true", t.apply_chat_template, t, HI,
      { chat_template = PLAIN, return_assistant_tokens_mask = true })
  end)

  it("gives templates a message's reasoning under the names that they read", function()
    local template = "{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}"
    assert.equal("r|r", apply({ { role = "assistant", reasoning = "r" } }, { chat_template = template }))
    assert.equal("t|t", apply({ { role = "assistant", thinking = "t" } }, { chat_template = template }))
    assert.equal("c|c", apply({ { role = "assistant", reasoning_content = "c", reasoning = "r" } },
      { chat_template = template }))
    assert.equal("|", apply(HI, { chat_template = template }))
  end)
end)
