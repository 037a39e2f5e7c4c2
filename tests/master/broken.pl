# A pool's child that no Python wrote. It does what the payload says, which is to break the protocol in one of its ways.
use strict;
use warnings;
use POSIX ();

$| = 1;
$SIG{PIPE} = 'IGNORE';

sub note {
    open my $file, '>>', $ENV{LEDGER} or die;
    syswrite $file, join(' ', @_) . "\n";
}

while (my $line = <STDIN>) {
    my ($id) = $line =~ /"id":"([^"]*)"/;
    my ($do) = $line =~ /"do":"([^"]*)"/;
    my $ok = qq({"id":"$id","status":"ok","result":$$}\n);
    note('GIVEN', $do, $$);
    if    ($do eq 'ok')          { print $ok }
    elsif ($do eq 'slow')        { select undef, undef, undef, 0.3; print $ok }
    elsif ($do eq 'hang')        { sleep 600 }
    elsif ($do eq 'missing id')  { print qq({"status":"ok","result":$$}\n) }
    elsif ($do eq 'crlf')        { $ok =~ s/\n/\r\n/; print $ok }
    elsif ($do eq 'in pieces')   { for (split //, $ok) { syswrite STDOUT, $_ } }
    elsif ($do eq 'error')       { print qq({"id":"$id","status":"error","message":"boom"}\n) }
    elsif ($do eq 'plain error') { print qq({"id":"$id","status":"error"}\n) }
    elsif ($do eq 'odd error')   { print qq({"id":"$id","status":"error","message":{"code":7}}\n) }
    elsif ($do eq 'dead')        { print qq({"id":"$id","status":"dead","message":"never"}\n) }
    elsif ($do eq 'throttled')   { print qq({"id":"$id","status":"throttled","retry_after_secs":12}\n) }
    elsif ($do eq 'throttled, plain') { print qq({"id":"$id","status":"throttled"}\n) }
    elsif ($do eq 'bad pause')   { print qq({"id":"$id","status":"throttled","retry_after_secs":"soon"}\n) }
    elsif ($do eq 'partial')     { syswrite STDOUT, '{"id":"' . $id . '","sta'; POSIX::_exit(4) }
    elsif ($do eq 'no line end') { chomp $ok; syswrite STDOUT, $ok; sleep 600 }
    elsif ($do eq 'garbage')     { print "Segmentation fault (core dumped)\n" }
    elsif ($do eq 'bytes')       { syswrite STDOUT, "\xff\xfe\x00\x80\n" }
    elsif ($do eq 'empty')       { print "\n" }
    elsif ($do eq 'array')       { print "[1,2]\n" }
    elsif ($do eq 'deep')        { print '[' x 100_000, "\n" }
    elsif ($do eq 'status')      { print qq({"id":"$id","status":"fine"}\n) }
    elsif ($do eq 'no status')   { print qq({"id":"$id"}\n) }
    elsif ($do eq 'wrong id')    { print qq({"id":"stale","status":"ok"}\n) }
    elsif ($do eq 'number id')   { print qq({"id":7,"status":"ok"}\n) }
    elsif ($do eq 'endless')     { my $piece = 'x' x 65536; for (1 .. 16384) { syswrite STDOUT, $piece or last } sleep 600 }
    elsif ($do eq 'two lines')   { syswrite STDOUT, $ok . $ok }
    elsif ($do eq 'late line')   { print $ok; select undef, undef, undef, 0.2; print $ok }
    elsif ($do eq 'late')        { sleep 2; print $ok }
    elsif ($do eq 'stdout')      { close STDOUT; sleep 600 }
    elsif ($do eq 'stdin')       { close STDIN; print $ok; sleep 600 }
    elsif ($do eq 'exit')        { exit 3 }
    elsif ($do eq 'exit 0')      { print $ok; exit 0 }
    elsif ($do eq 'signal')      { kill 'SEGV', $$; sleep 600 }
    elsif ($do eq 'deaf')        { $SIG{TERM} = $SIG{INT} = $SIG{HUP} = 'IGNORE'; sleep 600 while 1 }
    elsif ($do eq 'forks')       {
        my $child = fork // die;
        if (!$child) { my $grandchild = fork // die; if ($grandchild) { note('GRANDCHILD', $grandchild); exit } sleep 600 }
        waitpid $child, 0;
        sleep 600;
    }
    elsif ($do eq 'stderr')      { print STDERR "a line of the flood number $_\n" for 1 .. 50_000; print $ok }
    elsif ($do eq 'long stderr') { print STDERR 'y' x 3_000_000, "\n"; print $ok }
    elsif ($do eq 'environment') { print qq({"id":"$id","status":"ok","result":"$ENV{WORD}/$ENV{PWD}"}\n) }
    elsif ($do eq 'echo')        { chomp $line; print qq({"id":"$id","status":"ok","result":$line}\n) }
    else                         { die "told to $do" }
}
note('LEFT', $$);
