"""The sentences and names that the German letters are made of: all invented, none copied.

``HAND`` is what one writer would write, ``OTHER_HAND`` what another would: no sentence is in both.  A field
in braces is filled by ``make_letters.py``.
"""

from __future__ import annotations

HAND = (
    "Sehr geehrte Damen und Herren,",
    "Sehr geehrter Herr {family},",
    "Sehr geehrte Frau {family},",
    "Guten Tag Frau Dr. {family},",
    "mein Name ist {person} und ich wohne in der {street} in {place}.",
    "Hiermit kündige ich meinen Vertrag mit der Kundennummer {customer} zum {date}.",
    "Bitte überweisen Sie den Betrag auf mein Konto {iban}.",
    "Meine neue Anschrift lautet {street}, {place}.",
    "Sie erreichen mich unter {phone} oder per E-Mail an {mail}.",
    "Am {date} habe ich mit Ihrem Kollegen {person} gesprochen.",
    "Die Rechnung der Firma {company} habe ich am {date} bezahlt.",
    "Meine Steuer-Identifikationsnummer ist {tax}.",
    "Das Fahrzeug mit dem Kennzeichen {plate} steht noch in {town}.",
    "Frau {person} hat den Schlüssel am {date} abgegeben.",
    "Rufen Sie bitte meine Tochter {given} an, Telefon {phone}.",
    "Der Zähler im Haus {street} wurde von Herrn {family} abgelesen.",
    "Unser Ansprechpartner bei {company} heißt {person}.",
    "Ich bin am {date} in {town} geboren.",
    "Die Lieferung ging an {person}, {street}, {place}.",
    "Die Gutschrift buchen Sie bitte auf {iban} um.",
    "Herr {family} aus {town} hat die Ware nicht angenommen.",
    "Für Rückfragen steht Ihnen {person} unter {mail} zur Verfügung.",
    "Mit freundlichen Grüßen {person}",
    "Viele Grüße, {given}",
    "Meine Kundennummer ist {customer}, das Kennzeichen {plate}.",
    "Seit dem {date} arbeite ich bei {company} in {town}.",
    "vielen Dank für Ihre schnelle Antwort.",
    "Bitte teilen Sie mir mit, wann ein Techniker kommen kann.",
    "Ich bitte um eine Bestätigung in Schriftform.",
    "Können Sie mir einen anderen Termin vorschlagen?",
    "Über eine baldige Nachricht würde ich mich freuen.",
    "{thing} {fault}.",
    "{thing} {fault}, und das {time}.",
    "{thing} {fault}.",
    "Ich schreibe Ihnen, weil {thing} {since} nicht mehr in Ordnung ist.",
    "{time} haben wir bemerkt: {thing} {fault}.",
    "{thing} {fault}, aber {thing2} ist in Ordnung.",
    "Mit {dative} bin ich {since} sehr zufrieden.",
    "Bitte schicken Sie jemanden, der sich um das Problem mit {dative} kümmert.",
    "Wegen {dative} habe ich {since} keine Antwort bekommen.",
)

OTHER_HAND = (
    "Hallo {given}, hast du schon mit {person} geredet?",
    "Wir ziehen nach {town} um, die Adresse ist {street}.",
    "Ruf mich doch kurz zurück: {phone}",
    "Der Vermieter, ein gewisser {person}, meldet sich einfach nicht.",
    "Schick die Unterlagen bitte an {mail}, dann drucke ich sie aus.",
    "{given} {family} war gestern nicht im Büro.",
    "Die Kaution geht auf {iban}, Empfänger ist {person}.",
    "Im Auftrag von {company} schreibe ich Ihnen wegen der Nummer {customer}.",
    "Geboren wurde er {date}, gelebt hat er immer in {town}.",
    "Ihre Steuernummer lautet {tax}, die von {given} kenne ich nicht.",
    "Der Wagen ({plate}) gehört der Nachbarin {family}.",
    "Treffpunkt: {street}, {place}, gegenüber der Apotheke.",
    "Ohne {given} hätten wir das nie geschafft, sagt auch {family}.",
    "Bis {date} braucht {company} eine Entscheidung.",
    "Kommst du am Wochenende mit zum Baden?",
    "Das Fest fällt wegen des Wetters aus.",
    "Die Handwerker haben den Flur neu gestrichen.",
    "So viel Regen hatten wir lange nicht mehr.",
    "Den Vertrag schauen wir uns in Ruhe an.",
    "Der Kuchen steht im Kühlschrank, nimm dir ein Stück.",
    "Eigentlich wollten wir früher los.",
    "Im Keller riecht es nach Farbe.",
    "Die Nachbarn sind sehr nett und hilfsbereit.",
    "Am besten fahren wir mit dem Zug.",
    "Das Brot ist ausgegangen, es gibt nur noch Nudeln.",
    "Vor dem Haus parkt ein roter Lieferwagen.",
    "Wer übernimmt nächste Woche den Putzdienst?",
    "Die Pflanzen brauchen dringend Wasser.",
    "Der Film gestern war ziemlich langweilig.",
    "Unser Hund verträgt das neue Futter nicht.",
    "Bring bitte eine warme Jacke mit.",
    "Das Licht im Treppenhaus brennt die ganze Nacht.",
    "Morgen wird der Müll abgeholt.",
    "Im Garten blühen schon die ersten Tulpen.",
)


def _listed(words: str) -> list[str]:
    return words.split()


GIVEN = _listed(
    """
    Adelheid Albrecht Alwin Anneliese Ansgar Beate Benno Birgit Brunhilde Burkhard Carsten Dagmar Detlef Dörte
    Eberhard Edeltraud Eike Elfriede Enno Frauke Friedhelm Gerlinde Gernot Gisela Gudrun Hannelore Harald
    Hedwig Heiner Henrike Ilse Ingo Irmgard Jochen Jörn Karla Klothilde Konrad Leopold Liesel Lothar Ludwig
    Mechthild Meinhard Norbert Ortrun Ottmar Petra Rainer Reinhild Roswitha Rüdiger Siegrun Silke Sönke
    Swantje Thorben Traudel Ulrike Uwe Volker Waltraud Wiebke Wolfhard
    """
)
FAMILY = _listed(
    """
    Acker Birn Brand Buch Dorn Eich Falken Feld Grün Hasel Hohen Kirch Kohl Linden Moos Nieder Ober Reut
    Rosen Sand Stein Tannen Ulm Wald Weid Wiesen
    """
)
FAMILY_ENDS = _listed("bauer berger brock hofer huber kamp könig ler mann meier müller ner schmidt thal")
TOWNS = _listed(
    """
    Aachen Bamberg Bautzen Celle Cottbus Detmold Emden Erfurt Fulda Gera Gießen Görlitz Greifswald Hameln
    Hanau Husum Ingolstadt Jena Kassel Kiel Konstanz Landshut Lüneburg Meißen Minden Neuss Nürnberg Passau
    Plauen Rostock Schwerin Siegen Speyer Stralsund Trier Tübingen Ulm Weimar Wismar Worms
    """
)
STREETS = _listed(
    "Ahorn Amsel Bahnhof Birken Brunnen Dorf Eichen Garten Kirch Linden Mühlen Rosen Schul Wald Wiesen"
)
STREET_ENDS = _listed("straße weg gasse allee platz")
COMPANIES = _listed(
    "Bergquell Dachfein Elbkontor Frischhof Gleisbau Heidetee Kupferwerk Nordlicht Rohrfix Talblick"
)
COMPANY_ENDS = ["GmbH", "AG", "KG", "& Söhne", "Logistik GmbH"]
MONTHS = _listed("Januar Februar März April Mai Juni Juli August September Oktober November Dezember")
# what stands in lines that give nothing away
THINGS = [
    *("die Waschmaschine", "der Aufzug", "die Heizung", "das Paket", "die Rechnung", "der Kühlschrank"),
    *(
        "die Werkstatt",
        "das Gerät",
        "der Vertrag",
        "die Lieferung",
        "die Anleitung",
        "das Fenster",
        "die Tür",
    ),
    *("der Schlüssel", "die Bestellung", "das Ersatzteil", "der Preis", "die Farbe", "der Briefkasten"),
]
FAULTS = [
    *("fehlt noch immer", "ist schon wieder kaputt", "entspricht nicht dem Angebot", "war beschädigt"),
    *("funktioniert leider nicht", "wurde ohne Ankündigung geändert", "passt nicht zum Modell", "klemmt"),
    *("ist viel zu spät gekommen", "macht laute Geräusche", "steht im falschen Haus", "war am Abend weg"),
]
TIMES = ["am Montag", "heute früh", "zum dritten Mal", "schon im Frühling", "gestern Abend", "vor dem Urlaub"]
SINCES = ["seit gestern", "seit einer Woche", "seit dem Umbau", "seit langem", "seit dem letzten Besuch"]
DATIVES = [
    *("der Arbeit Ihrer Werkstatt", "dem neuen Gerät", "der alten Heizung", "dem Angebot", "der Garantie"),
    *("den Unterlagen", "Ihrem Kundendienst", "dem Schaden im Keller", "der Abrechnung", "dem Ersatzteil"),
]
PLATE_TOWNS = _listed("B HH M K F S KS UL TR J")
