# percheron_embed_page(TARGET FOLDER): compiles the web page's files into the target.
function(percheron_embed_page target folder)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/page_files.cpp)
    set(script ${PROJECT_SOURCE_DIR}/cmake/EmbedPage.cmake)
    file(GLOB names CONFIGURE_DEPENDS RELATIVE ${folder}
        ${folder}/*.html ${folder}/*.css ${folder}/*.js ${folder}/*.svg)
    list(TRANSFORM names PREPEND ${folder}/ OUTPUT_VARIABLE files)
    add_custom_command(
        OUTPUT ${source}
        COMMAND ${CMAKE_COMMAND} -D FOLDER=${folder} -D "NAMES=${names}" -D OUTPUT=${source}
            -P ${script}
        DEPENDS ${script} ${files}
        COMMENT "Embedding the web page"
        VERBATIM)
    target_sources(${target} PRIVATE ${source})
endfunction()
