// The source behind the precompiled headers.
