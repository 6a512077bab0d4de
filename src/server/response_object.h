// The objects of the Responses API: items of a reply and the response around them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/collecting_writer.h"
#include "server/responses_writer.h"

namespace percheron::server {

class ResponseObject {
  public:
    ResponseObject(const ReplyIdentity& identity, const ResponsesWriterOptions& options)
        : identity_(identity), options_(options) {}

    // The item of a block; its id depends on the reply and the index alone.
    Json item(std::size_t index, const ReplyBlock& block, std::string_view status) const;
    std::string item_id(std::size_t index, const ReplyBlock& block) const;
    bool is_custom(const ReplyBlock& block) const;
    // The one string a custom tool is called with; what it has of one when the call was cut.
    static std::string custom_input(const ReplyBlock& block);
    static Json text_part_of(const ReplyBlock& block, const std::string& text);

    // While it runs.
    Json begun() const;
    // When it has ended; kept in the store if the request wants that.
    Json ended(const std::vector<ReplyBlock>& blocks, const ChoiceEnd& end,
               const ReplyUsage& usage) const;
    Json failed(const ApiError& error) const;

  private:
    Json frame(std::string_view status) const;

    ReplyIdentity identity_;
    ResponsesWriterOptions options_;
};

// As text; what is no UTF-8 is replaced.
std::string dump(const Json& json);

}  // namespace percheron::server
