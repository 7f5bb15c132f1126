"""What several subcommands share: options, values, output."""
