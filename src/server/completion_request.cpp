#include "server/completion_request.h"

#include <utility>

#include "server/completion_writer.h"

namespace percheron::server {
namespace {

constexpr std::size_t most_prompts = 1024;
constexpr std::int64_t most_logprobs = 20;

// Reads what `prompt` may be: a text, a list of ids, or a list of either.
class PromptReader {
  public:
    PromptReader(const GenerationSetting& setting, FieldReader& fields,
                 std::vector<CompletionPrompt>& prompts)
        : tokenizer_(setting.model.format.tokenizer()),
          vocabulary_(setting.model.vocabulary),
          context_(setting.engine.context_tokens),
          fields_(fields),
          prompts_(prompts) {}

    void read() {
        const Json* prompt = fields_.find("prompt");
        const bool list = prompt != nullptr && prompt->is_array() && !prompt->empty();
        if (prompt != nullptr && prompt->is_string()) {
            add_text(*prompt, "prompt");
        } else if (list && (*prompt)[0].is_number()) {
            add_ids(*prompt, "prompt");
        } else if (list && prompt->size() <= most_prompts) {
            for (std::size_t i = 0; i < prompt->size(); ++i) {
                const std::string place = "prompt[" + std::to_string(i) + "]";
                if ((*prompt)[i].is_string()) {
                    add_text((*prompt)[i], place);
                } else {
                    add_ids((*prompt)[i], place);
                }
            }
        } else {
            fail("prompt", " must be a string, a list of token ids, or a list of at most " +
                               std::to_string(most_prompts) + " of these");
        }
    }

  private:
    void fail(const std::string& place, const std::string& what) {
        fields_.fail(invalid_value(place, place + what));
    }

    void add_text(const Json& value, const std::string& place) {
        const auto& text = value.get_ref<const std::string&>();
        const std::size_t least = text.size() / tokenizer_.longest_token();
        if (least > context_) {
            fields_.fail({400, "context_length_exceeded",
                          place + " has more than " + std::to_string(least) +
                              " tokens and the model's context is " + std::to_string(context_) +
                              " tokens; shorten it",
                          place});
            return;
        }
        add({text, tokenizer_.encode_trusted(text)}, place);
    }

    void add_ids(const Json& value, const std::string& place) {
        CompletionPrompt prompt;
        for (const Json& id : value) {
            if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= vocabulary_) {
                fail(place, " must be a string or a list of token ids below " +
                                std::to_string(vocabulary_));
                return;
            }
            prompt.ids.push_back(TokenId{id.get<std::int32_t>()});
        }
        if (!value.is_array()) {
            fail(place, " must be a string or a list of token ids");
            return;
        }
        prompt.text = tokenizer_.decode(prompt.ids);
        add(std::move(prompt), place);
    }

    void add(CompletionPrompt prompt, const std::string& place) {
        if (prompt.ids.empty()) {
            fail(place, " is empty; give at least one token to continue from");
            return;
        }
        // Only chats bring pictures, and what stands for one is nothing without it.
        for (const char* name : {"<|image|>", "<|video|>"}) {
            const auto placeholder = tokenizer_.added_token(name);
            for (const TokenId id : prompt.ids) {
                if (id != placeholder) continue;
                fail(place, " holds " + std::string(name) +
                                ", which stands for a picture; send pictures in chat messages");
                return;
            }
        }
        prompts_.push_back(std::move(prompt));
    }

    const Tokenizer& tokenizer_;
    std::uint32_t vocabulary_;
    std::size_t context_;
    FieldReader& fields_;
    std::vector<CompletionPrompt>& prompts_;
};

void refuse_what_is_not_done(FieldReader& fields, std::uint32_t choices) {
    if (!fields.text("suffix", 1024).value_or("").empty()) {
        fields.fail(unsupported_parameter(
            "suffix", "suffix is not supported; put the text to continue into prompt"));
    }
    const auto best_of = fields.integer("best_of", 1, 64);
    if (best_of && *best_of != choices) {
        fields.fail(unsupported_parameter(
            "best_of", "best_of other than n is not supported; ask for n choices"));
    }
    if (fields.find("response_format") != nullptr) {
        fields.fail(unsupported_parameter(
            "response_format", "response_format belongs to chat completions; leave it out"));
    }
}

}  // namespace

ParsedCompletion parse_completion_request(std::string_view body, const GenerationSetting& setting) {
    ParsedCompletion result;
    JsonBody json = parse_json_object(body);
    if (json.error) {
        result.error = std::move(json.error);
        return result;
    }
    FieldReader fields(json.object);
    result.fields =
        read_generation_fields(fields, setting.model.defaults, setting.model.vocabulary);
    GenerationRequest& request = result.fields.request;
    result.echo = fields.boolean("echo").value_or(false);
    const Json* logprobs = fields.find("logprobs");
    // False and true are what chat clients send here: none, and the chosen token alone.
    if (logprobs != nullptr && logprobs->is_boolean()) {
        request.sampling.top_logprobs = logprobs->get<bool>() ? 0 : -1;
    } else if (const auto count = fields.integer("logprobs", 0, most_logprobs)) {
        request.sampling.top_logprobs = static_cast<int>(*count);
    }
    if (result.echo) request.prompt_logprobs = request.sampling.top_logprobs;
    if (request.prompt_logprobs >= 0 && result.fields.stream && request.choices > 1) {
        fields.fail(unsupported_parameter(
            "n", "n above 1 is not supported for a stream with echo and logprobs; leave one out"));
    }
    refuse_what_is_not_done(fields, request.choices);
    refuse_foreign_fields(fields);
    PromptReader(setting, fields, result.prompts).read();
    if (request.report_progress && result.prompts.size() > 1) {
        fields.fail(
            invalid_value("return_progress", "return_progress goes with one prompt; leave it out"));
    }
    result.unknown_fields = fields.unknown();
    result.error = fields.error();
    return result;
}

PreparedGeneration prepare_completion(const GenerationSetting& setting, std::string_view body) {
    PreparedGeneration prepared;
    ParsedCompletion parsed = parse_completion_request(body, setting);
    prepared.unknown_fields = std::move(parsed.unknown_fields);
    prepared.fields = std::move(parsed.fields);
    prepared.error = std::move(parsed.error);
    if (!prepared.error) prepared.error = check_model(setting, prepared.fields.model);
    if (!prepared.error) write_output_rules(setting, prepared);
    for (std::size_t i = 0; i < parsed.prompts.size() && !prepared.error; ++i) {
        GenerationRequest request = prepared.fields.request;
        request.last_message = parsed.prompts[i].text;
        prepared.error = set_prompt(request, parsed.prompts[i].ids, setting, "prompt");
        prepared.requests.push_back(std::move(request));
    }
    if (prepared.error) return prepared;
    prepared.verbatim = true;
    prepared.id_prefix = "cmpl-";
    CompletionWriterOptions options;
    options.choices = prepared.fields.request.choices;
    options.include_usage = prepared.fields.include_usage;
    options.continuous_usage = prepared.fields.continuous_usage;
    options.token_ids = prepared.fields.return_token_ids;
    options.logprobs = prepared.fields.request.sampling.top_logprobs >= 0;
    options.echo = parsed.echo;
    options.prompts =
        std::make_shared<const std::vector<CompletionPrompt>>(std::move(parsed.prompts));
    prepared.make_writer = [options, stream = prepared.fields.stream](const WriterSetting& writer) {
        return stream ? make_completion_stream_writer(writer, options)
                      : make_completion_writer(writer, options);
    };
    return prepared;
}

}  // namespace percheron::server
