// Bytes through every way of encoding; and tokenizer files that are damaged.
#include <string>

#include "fuzz.h"
#include "text/marked_text.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace percheron::fuzz {
namespace {

const Tokenizer& nano() {
    static const Tokenizer tokenizer =
        Tokenizer::load(PERCHERON_SOURCE_DIR "/models/nano/tokenizer.json").value();
    return tokenizer;
}

std::string joined(const std::vector<TokenId>& ids) {
    std::string bytes;
    for (const TokenId id : ids)
        bytes += nano().bytes_of(id);
    return bytes;
}

}  // namespace

void tokenizer(Input input) {
    Reader reader(input);
    const std::uint8_t kind = reader.byte();
    if (kind == 0xFF) {
        (void)Tokenizer::parse(reader.rest());
        return;
    }
    const std::string_view text = reader.rest();
    const auto plain = nano().encode(text);
    promise(joined(plain) == text, "encoding loses no byte");
    for (const TokenId id : plain)
        promise(!nano().is_added(id), "plain text has no added token");
    promise(nano().decode(plain) == with_replacements(text), "decoding gives the text back");
    promise(joined(nano().encode_trusted(text)) == text, "trusted encoding loses no byte");
    MarkedText marked;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t count = 1 + static_cast<std::uint8_t>(text[at]) % 7 + kind % 5;
        const bool input_text = (at + kind) % 3 == 0;
        marked.append(text.substr(at, count),
                      input_text ? TextOrigin::from_input : TextOrigin::from_template);
        at += count;
    }
    const auto ids = nano().encode_marked(marked);
    promise(joined(ids) == text, "marked encoding loses no byte");
    std::size_t at = 0;
    auto run = marked.runs().begin();
    for (const TokenId id : ids) {
        const std::size_t end = at + nano().bytes_of(id).size();
        while (run != marked.runs().end() && run->end <= at)
            ++run;
        promise(
            !nano().is_added(id) || (run->origin == TextOrigin::from_template && end <= run->end),
            "an added token is the template's, whole");
        at = end;
    }
}

}  // namespace percheron::fuzz

PERCHERON_FUZZ_ENTRY(tokenizer)
