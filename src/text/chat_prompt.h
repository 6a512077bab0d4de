// A chat request becomes a prompt: messages and tools in, token ids out.
#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "percheron/types.h"

#include "core/status.h"
#include "text/tokenizer.h"

namespace percheron {

struct ChatOptions {
    bool add_generation_prompt = true;
    // The last message is an assistant's and the reply continues it.  Needs
    // add_generation_prompt = false.
    bool continue_final_message = false;
    // `low`, `high` or `max`; empty leaves it to the template.
    std::string reasoning_effort;
    // A rendered text that is certain to have more tokens than this is refused before it is taken
    // apart; its images count as one token each.
    std::size_t most_tokens = std::numeric_limits<std::size_t>::max();
    // The request's chat_template_kwargs: further variables for the template.  An object or null.
    nlohmann::ordered_json variables;
};

struct ChatPrompt {
    std::vector<TokenId> ids;
    std::string text;                          // as rendered
    std::vector<std::size_t> image_positions;  // of each <|image|> in ids, in order
    // The image part (text/image_parts.h) that each of them stands for: templates may print
    // messages in another order than they came.
    std::vector<std::size_t> image_parts;
    std::vector<std::size_t> video_positions;
    bool starts_in_reasoning = false;  // the reply begins inside <think>
    std::string last_message;          // text of the last message
};

// The chat template and tokenizer of one model.  Thread-safe once loaded.
class ChatFormat {
  public:
    // Reads tokenizer.json and chat_template.jinja of a model folder (or the chat_template of
    // tokenizer_config.json), and the tokens that tokenizer_config.json names, if it is there.
    static Result<ChatFormat> load(const std::filesystem::path& model_folder);
    static Result<ChatFormat> make(Tokenizer tokenizer, std::string_view template_source);

    ChatFormat(ChatFormat&&) noexcept;
    ChatFormat& operator=(ChatFormat&&) noexcept;
    ~ChatFormat();

    const Tokenizer& tokenizer() const;

    // `messages`: OpenAI messages.  Accepted alike: tool-call arguments as JSON string or object;
    // content null, absent, "" or a list of parts; `developer` for `system`; `reasoning` for
    // `reasoning_content`.  `tools`: a list or null.  Text of messages and tools never becomes a
    // control token.
    // Errors: invalid_argument with the place and what is wrong in one sentence;
    // with the reason context_length_exceeded when the text cannot fit into most_tokens.
    Result<ChatPrompt> render(const nlohmann::ordered_json& messages,
                              const nlohmann::ordered_json& tools,
                              const ChatOptions& options) const;

  private:
    struct Content;
    explicit ChatFormat(std::unique_ptr<Content> content);
    Status find_image_parts(const nlohmann::ordered_json& messages,
                            const nlohmann::ordered_json& tools, const ChatOptions& options,
                            ChatPrompt& prompt) const;

    std::unique_ptr<Content> content_;
};

}  // namespace percheron
