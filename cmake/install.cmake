# libmere for other programs: every layer below serve/ and cli/ linked into one object in which only mere_* stays visible, so that
# names such as err_set or arena_take cannot meet the user's own.
#   mere_lib     libmere.a, needs the libraries named in mere.pc
#   mere_shared  libmere.so, with MERE_SHARED=ON
include(GNUInstallDirs)
option(MERE_SHARED "build and install libmere.so too" OFF)

set(layers base device graph weights text model engine)
set(objects)
foreach(layer ${layers})
    get_target_property(type mere_${layer} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
        list(APPEND objects $<TARGET_OBJECTS:mere_${layer}>)
    endif()
endforeach()

set(one "${CMAKE_BINARY_DIR}/libmere.o")
add_custom_command(OUTPUT "${one}"
    COMMAND ${CMAKE_LINKER} -r -o "${one}" ${objects}
    COMMAND ${CMAKE_OBJCOPY} --wildcard "--keep-global-symbol=mere_*" "${one}"
    DEPENDS ${objects} COMMAND_EXPAND_LISTS VERBATIM)
set_source_files_properties("${one}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
add_library(mere_lib STATIC "${one}")
set_target_properties(mere_lib PROPERTIES OUTPUT_NAME mere LINKER_LANGUAGE C)
target_include_directories(mere_lib INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(mere_lib INTERFACE PkgConfig::JANSSON PkgConfig::PCRE2 PkgConfig::UTF8PROC PkgConfig::XXHASH
    PkgConfig::CRYPTO Threads::Threads m)
if(MERE_SANITIZE)
    target_link_libraries(mere_lib INTERFACE mere_flags)
endif()

if(MERE_SHARED)
    file(WRITE "${CMAKE_BINARY_DIR}/mere.map" "{ global: mere_*; local: *; };\n")
    add_library(mere_shared SHARED "${one}")
    set_target_properties(mere_shared PROPERTIES OUTPUT_NAME mere LINKER_LANGUAGE C VERSION ${PROJECT_VERSION}
        SOVERSION ${PROJECT_VERSION_MAJOR} LINK_OPTIONS "LINKER:--version-script=${CMAKE_BINARY_DIR}/mere.map")
    target_link_libraries(mere_shared PRIVATE PkgConfig::JANSSON PkgConfig::PCRE2 PkgConfig::UTF8PROC PkgConfig::XXHASH
        PkgConfig::CRYPTO Threads::Threads m)
    install(TARGETS mere_shared)
endif()

# Relative to itself, so that the tree may be installed under any prefix and moved.
file(RELATIVE_PATH MERE_PC_TO_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/mere.pc.in mere.pc @ONLY)
if(TARGET mere)
    install(TARGETS mere)
endif()
install(TARGETS mere_lib)
install(FILES include/mere.h TYPE INCLUDE)
install(FILES "${CMAKE_BINARY_DIR}/mere.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES README.md LICENSE TYPE DOC)
